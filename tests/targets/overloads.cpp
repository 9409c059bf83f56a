// Functions of one name.

#define APART __attribute__((noinline, noclone))

APART int add(int a, int b)
{
    return a + b;
}

APART int add(long a, double b)
{
    return a + b;
}

APART int add_one(int a)
{
    return a + 1;
}

int main(int argc, char **)
{
    return add(argc, 1) + add(static_cast<long>(argc), 1.0) + add_one(argc) == 0;
}
