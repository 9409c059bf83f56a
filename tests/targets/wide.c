/* A number of 16 bytes among other arguments, on the stack, and as a result. */
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

#ifdef __SIZEOF_INT128__
typedef unsigned __int128 number;
#else
typedef unsigned long long number;
#endif

static number of(long high, long low)
{
    return (number)high << (4 * sizeof(number)) | (number)low;
}

APART number wide(long a, number x, long b, long c, long d, number y)
{
    __asm__ volatile("" : : : "memory");
    return x + y + of(a + b - 5, c + d - 9);
}

int main(int argc, char **argv)
{
    (void)argv;
    return wide(argc, of(3, 2), 4, 4, 5, of(6, 5)) == 0;
}
