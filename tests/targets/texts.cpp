// Texts and references as C++ has them.
#include <cstdio>
#include <string>
#include <string_view>

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

int main()
{
    std::string text = "a text that is too long to be kept in place", small = "small";
    point p{1, 2};
    int number = 41;
    int sum = texts(small, text, &small, std::string_view(text).substr(2, 4));
    std::printf("%d %d\n", sum, references(number, p, person{"Ada", 36}));
}
