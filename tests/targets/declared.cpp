// A text of the library, which this file does not define.
#include <string>

__attribute__((noinline)) long take(const std::string &text)
{
    return static_cast<long>(text.size());
}

int main()
{
    const std::string text = "some text";
    return take(text) == 0;
}
