// Goroutines, stacks that grow and move, and calls whose number is known.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
)

//go:noinline
func leaf(x int64) int64 { return x*3 + 1 }

// grow needs about half a kilobyte of stack per level: the runtime moves the stack while it is deep in it.
//
//go:noinline
func grow(depth int64) int64 {
	var room [64]int64
	for i := range room {
		room[i] = depth + int64(i)
	}
	if depth == 0 {
		return room[1]
	}
	return grow(depth-1) + room[depth&63] - room[depth&63]
}

//go:noinline
func work(n int64) int64 {
	var sum int64
	for i := int64(0); i < n; i++ {
		sum += leaf(i)
	}
	return sum
}

// deep runs grow(n) in ten fresh goroutines, each of which starts on a small stack.
func deep(n int64) int64 {
	var wg sync.WaitGroup
	results := make([]int64, 10)
	for i := range results {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			results[i] = grow(n)
		}(i)
	}
	wg.Wait()
	var sum int64
	for _, r := range results {
		sum += r
	}
	return sum
}

// many splits n calls of leaf over 100 goroutines.
func many(n int64) int64 {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var sum int64
	for i := 0; i < 100; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			part := work(n)
			mu.Lock()
			sum += part
			mu.Unlock()
		}()
	}
	wg.Wait()
	return sum
}

// spawn executes a program n times, and says how often that went well.
func spawn(n int64) int64 {
	var well int64
	for i := int64(0); i < n; i++ {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		var status syscall.WaitStatus
		if err == nil {
			_, err = syscall.Wait4(pid, &status, 0, nil)
		}
		if err == nil && status.ExitStatus() == 0 {
			well++
		}
	}
	return well
}

func run(name string, n int64) int64 {
	switch name {
	case "work":
		return work(n)
	case "deep":
		return deep(n)
	case "many":
		return many(n)
	case "spawn":
		return spawn(n)
	}
	panic("no command " + name)
}

func main() {
	if len(os.Args) > 2 {
		var n int64
		fmt.Sscan(os.Args[2], &n)
		fmt.Println(run(os.Args[1], n))
		return
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var name string
		var n int64
		fmt.Fscan(strings.NewReader(in.Text()), &name, &n)
		fmt.Println(run(name, n))
	}
}
