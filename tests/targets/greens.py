"""The commands of serve.h for Python: threads with exceptions, and greenlets, whose stacks move."""
import os
import sys
import threading
import time

MODULES = {}


def load(_):
    import greenlet
    MODULES['greenlet'] = greenlet
    return 1


def switches(seed):
    """Five greenlets that are switched in turn."""
    greenlet = MODULES['greenlet']

    def body(rounds):
        me = greenlet.getcurrent()
        total = 0
        for i in range(rounds):
            total += me.parent.switch(i)
            try:
                raise ValueError(str(i))
            except ValueError as error:
                total += len(error.args)
        return total

    total = 0
    greens = [greenlet.greenlet(body) for _ in range(5)]
    values = [green.switch(seed + 3) for green in greens]
    while greens:
        for i, green in reversed(list(enumerate(greens))):
            values[i] = green.switch(values[i])
            if green.dead:
                total += values[i]
                del greens[i], values[i]
    return total


def threads(rounds):
    load(0)
    results = []
    for _ in range(rounds):
        some = [threading.Thread(target=lambda seed=seed: results.append(switches(seed))) for seed in range(4)]
        for thread in some:
            thread.start()
        for thread in some:
            thread.join()
    # A thread that was joined is still about to return from what woke this one.
    while len(os.listdir('/proc/self/task')) > 1:
        time.sleep(0.001)
    return sum(results)


COMMANDS = {'load': load, 'threads': threads}


def main():
    if len(sys.argv) > 1:
        print(COMMANDS[sys.argv[1]](int(sys.argv[2])))
        return
    print('ready', flush=True)
    for line in sys.stdin:
        name, n = line.split()
        print(COMMANDS[name](int(n)), flush=True)


main()
