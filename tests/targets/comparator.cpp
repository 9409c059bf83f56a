// A comparator that throws through the C library's qsort, in a program whose unwinder may have no symbols.
#include <cstdio>
#include <cstdlib>

static int comparator(const void *, const void *) { throw 1; }

int main()
{
    int numbers[4] = { 4, 3, 2, 1 }, caught = 0;
    for (int i = 0; i < 100; i++)
        try {
            qsort(numbers, 4, sizeof *numbers, comparator);
        } catch (int) {
            caught++;
        }
    printf("%d\n", caught);
    return 3;
}
