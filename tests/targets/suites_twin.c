/* A function of a file's own, whose name another file has for one, too. */
#define PROBED __attribute__((noipa))

PROBED static long twin(long n) { return n * 2; }

long other_twin(long n) { return twin(n) + 1; }
