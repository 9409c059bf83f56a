// Texts and references as C++ has them.
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

struct point {
    int x, y;
};

struct person {
    std::string name;
    int age;
};

#define APART __attribute__((noinline, noipa))

APART int texts(std::string own, const std::string &other, std::string *address, std::string_view view)
{
    return own.size() + other.size() + address->size() + view.size();
}

APART int references(int &number, point &p, person &&someone)
{
    return number + p.x + someone.age;
}

struct holder {
    std::vector<int> list;
    std::string name;
};

APART int lists(std::vector<int> a, const std::vector<point> &b, std::initializer_list<double> c, holder *d,
                std::vector<std::string> &e)
{
    return a.size() + b.size() + c.size() + d->list.size() + e.size();
}

struct owner {
    int value;
    owner(int n) : value(n) {}
    ~owner() { asm volatile("" ::: "memory"); }
};

APART owner counted(int n)
{
    return owner(n);
}

APART long double halved(long double *n)
{
    return *n / 2;
}

int main(int argc, char **)
{
    if (argc > 1) {
        long double number = 10;
        if (counted(7).value + (int)halved(&number) != 12)
            return 1;
        holder of{{7, 8}, "holder"};
        std::vector<std::string> names{"x", "a name that is too long to be kept in place"};
        std::printf("%d\n", lists({1, 2, 3}, {{1, 2}, {3, 4}}, {0.5, 1.5}, &of, names));
        return 0;
    }
    std::string text = "a text that is too long to be kept in place", small = "small";
    point p{1, 2};
    int number = 41;
    int sum = texts(small, text, &small, std::string_view(text).substr(2, 4));
    std::printf("%d %d\n", sum, references(number, p, person{"Ada", 36}));
}
