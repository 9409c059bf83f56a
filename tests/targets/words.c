/* Texts on pages that nobody has touched when a function is called with them. */

#include <stdio.h>

/* Farther apart than what the kernel maps around a page that is touched. */
#define FAR (256 << 10)

static const char words[4][FAR] = {"first", "second", "third", "fourth"};

__attribute__((noinline)) static void say(const char *word)
{
	__asm__ volatile("" : : "r"(word) : "memory");
}

int main(void)
{
	for (int i = 0; i < 4; i++)
		say(words[i]);
	/* Only now somebody reads them. */
	for (int i = 0; i < 4; i++)
		puts(words[i]);
	return 0;
}
