// Exceptions through probed frames: thrown, caught half way, thrown again, with destructors on the way.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#ifdef __x86_64__
// A jump to a computed address, so that its exits are not known. Nobody calls it.
__asm__(".text\n.globl entered\n.type entered,@function\nentered:\n .cfi_startproc\n lea 1f(%rip),%rax\n"
        " lea (%rax,%rdi,4),%rax\n"
        " jmp *%rax\n1: add $1,%rax\n add $1,%rax\n ret\n .cfi_endproc\n.size entered,.-entered\n");
#endif

static long destroyed;

struct Guard {
    ~Guard() { destroyed++; }
};

namespace app {

struct Error : std::runtime_error {
    long value;
    explicit Error(long v) : std::runtime_error("error " + std::to_string(v)), value(v) {}
};

__attribute__((noipa)) long thrower(long depth, long value)
{
    Guard guard;
    if (depth == 0)
        throw Error(value);
    return thrower(depth - 1, value) + 1;
}

__attribute__((noipa)) long rethrower(long value)
{
    Guard guard;
    try {
        return thrower(3, value);
    } catch (const Error &e) {
        if (e.value % 2)
            throw;
        return e.value;
    }
}

__attribute__((noipa)) long catcher(long value)
{
    try {
        return rethrower(value);
    } catch (const std::exception &e) {
        return -std::strtol(e.what() + 6, nullptr, 10);
    }
}

__attribute__((noipa)) std::size_t quiet(const std::string &text) { return text.size(); }

} // namespace app

// Even values come back as they are, odd ones negative: the sum of the first n is -n/2 for even n.
static long run(long n)
{
    long sum = 0;
    destroyed = 0;
    for (long i = 0; i < n; i++) {
        sum += app::catcher(i);
        if (app::quiet("four") != 4)
            return -1;
    }
    return destroyed == 5 * n ? sum : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        std::printf("%ld\n", run(std::atol(argv[1])));
        return 0;
    }
    char line[64];
    std::puts("ready");
    std::fflush(stdout);
    while (std::fgets(line, sizeof line, stdin)) {
        long n = 0;
        std::sscanf(line, "%*s %ld", &n);
        std::printf("%ld\n", run(n));
        std::fflush(stdout);
    }
}
