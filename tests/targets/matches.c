/* Real code at work: PCRE2's matcher, as grep -P without its compiler. The library comes without headers. */
#include "serve.h"

void *pcre2_compile_8(const char *, size_t, unsigned, int *, size_t *, void *);
void *pcre2_match_data_create_from_pattern_8(void *, void *);
int pcre2_match_8(void *, const char *, size_t, size_t, unsigned, void *, void *);
size_t *pcre2_get_ovector_pointer_8(void *);
void pcre2_match_data_free_8(void *);
void pcre2_code_free_8(void *);

static const char *const patterns[] = {
    "(a|b)+c\\d*(?=x)", "(?i)QUICK\\s+(?<second>\\w+)\\b.*?\\k<second>", "^(?:(\\d+)[-/.])*\\1$", "[^\\W_]{3,5}+(?<!fox)\\s",
    "(?:x(?R)?y)+", "\\p{Lu}\\p{Ll}*|.{2}\\R",
};
static const char text[] = "The quick brown fox, the quick brown dog\nabcabbc12x 7-7-7 2024-11-22 xxxyyy xyxy\r\naaaabbbbcccc_Zz";

/* Checksum over n rounds. */
static long rounds(long n)
{
    unsigned long sum = 0;
    for (long k = 0; k < n; k++) {
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
            int error;
            size_t at, start = 0;
            void *code = pcre2_compile_8(patterns[i], strlen(patterns[i]), 0, &error, &at, NULL);
            if (!code)
                return -1;
            void *data = pcre2_match_data_create_from_pattern_8(code, NULL);
            size_t *ends = pcre2_get_ovector_pointer_8(data);
            while (start < sizeof text && pcre2_match_8(code, text, sizeof text - 1, start, 0, data, NULL) > 0) {
                sum = sum * 31 + ends[0] * 1000 + ends[1];
                start = ends[1] > start ? ends[1] : start + 1;
            }
            pcre2_match_data_free_8(data);
            pcre2_code_free_8(code);
        }
    }
    return sum & 0x7fffffff;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "rounds", rounds }, { 0 } };
    return serve(argc, argv, table);
}
