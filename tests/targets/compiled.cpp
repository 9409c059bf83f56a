// Arguments and a result of all kinds, at every level of optimization.
#include <string>
#include <vector>

struct point {
    int x, y;
};

// Only its members have a destructor.
struct halves {
    std::string of[2];
};

#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

class keeper {
public:
    int held = 7;
    APART long keep(const std::string &text, point &p, std::string own, halves both, std::vector<int> &&list);
};

long keeper::keep(const std::string &text, point &p, std::string own, halves both, std::vector<int> &&list)
{
    __asm__ volatile("" : : "r"(&text), "r"(&p), "r"(&own), "r"(&both), "r"(&list), "r"(this) : "memory");
    return held;
}

int main(int argc, char **)
{
    keeper keeper;
    point p{argc, 2};
    for (int i = 0; i < 2; i++)
        keeper.keep("text", p, "a text of its own", halves{{"left", "right"}}, std::vector<int>{1, 2, 3});
    return 0;
}
