/* Functions that take, give and lead to types of all shapes. What lies where is said by the compiler. */
#include "serve.h"
#include <stddef.h>
#include "records.h"

PROBED long visit(const struct node *node, unsigned char depth) { return node->id + depth; }
PROBED long by_value(int a, struct pair pair, short b, struct large large, char c)
{
    return a + pair.a + pair.b + b + large.w[4] + c;
}
PROBED double numbers(int a, double x, struct mix mix, float y, long b) { return a + x + mix.n + mix.y + y + b; }
PROBED long many(long a, int b, short c, char d, unsigned e, long f, int g, const char *h)
{
    return a + b + c + d + e + f + g + h[0];
}
PROBED int negative(int n) { return -n; }
PROBED _Bool is_odd(int n) { return n & 1; }
PROBED enum colour paint(enum colour colour) { return colour == RED ? GREEN : BLUE; }
PROBED struct node *next_of(struct node *node) { return node->next; }
PROBED struct pair swapped(struct pair pair) { return (struct pair){pair.b, pair.a}; }
PROBED struct large filled(long n) { return (struct large){{n, n + 1, n + 2, n + 3, n + 4}}; }
PROBED long filler(long n) { return filled(n).w[1]; }
PROBED void nothing(void) {}
static PROBED long only_here(const struct node **list, unsigned short count) { return (long)list[count - 1]->id; }

static struct node nodes[3];

static void fill(void)
{
    static const char *names[] = {"first", "second", "third"};
    for (int i = 0; i < 3; i++) {
        struct node *node = &nodes[i];
        node->next = i < 2 ? node + 1 : NULL;
        node->name = names[i];
        node->id = 4000000000u + (unsigned)i;
        memcpy(node->tag, i ? "full!!" : "tag", i ? 6 : 4);
        node->colour = i ? BLUE : GREEN;
        node->inner = (struct small){'a' + i, -100 * i, 'z'};
        node->at.x = -5;
        node->at.y = 6 + i;
        node->left = 0x04030201;
        for (int n = 0; n < 3; n++) {
            node->list[n] = (struct small){n, n * 10, n * 20};
            node->grid[0][n] = n;
            node->grid[1][n] = -n - 10;
        }
        node->ok = i == 0;
        node->ratio = 0.5f;
        node->exact = -2.25;
        node->wide = BELOW;
        node->bits = (struct bits){5, 100, -7, 0xabcdef1234, 9, 21, -200, -1, BLUE, -4000000000, 1};
        node->tight = (struct tight){1, -2, 6, 0x2bcdef12, -3000000000000, 77};
        node->either.d = 1;
        node->last = -1 - i;
    }
}

static long visits(long n)
{
    long sum = 0;
    fill();
    for (long i = 0; i < n; i++)
        sum += visit(&nodes[i % 3], (unsigned char)i);
    return sum;
}

static long values(long n)
{
    return by_value(1, (struct pair){20, 300}, -4, (struct large){{1, 2, 3, 4, n}}, 'c') +
           (long)numbers(7, 0.5, (struct mix){-3, 1.5f, 2.5}, 4.25f, n) +
           many(1, -2, -3, 'd', 5, 6, -7, "eight");
}

static long results(long n)
{
    fill();
    struct pair pair = swapped((struct pair){n, -n});
    return negative((int)n) + is_odd((int)n) + paint(RED) + next_of(&nodes[0])->id + pair.a + filled(n).w[4];
}

static long fillers(long n) { return filler(n); }

static long locals(long n)
{
    const struct node *list[] = {&nodes[2], &nodes[1], &nodes[0]};
    fill();
    nothing();
    return only_here(list, (unsigned short)n);
}

/* One line each: the type, the member, where it is. */
#define AT(type, member) printf("%s.%s %zu\n", #type, #member, offsetof(type, member));
#define SIZE(type) printf("%s %zu\n", #type, sizeof(type));

static long layouts(long n)
{
    SIZE(struct small)
    SIZE(struct bits)
    SIZE(struct tight)
    SIZE(union either)
    SIZE(struct node)
    SIZE(struct pair)
    SIZE(struct mix)
    SIZE(struct large)
    SIZE(enum colour)
    AT(struct small, s)
    AT(struct small, d)
    AT(struct bits, h)
    AT(struct tight, i)
    AT(struct tight, l)
    AT(struct tight, s)
    AT(struct node, name)
    AT(struct node, id)
    AT(struct node, tag)
    AT(struct node, colour)
    AT(struct node, inner.d)
    AT(struct node, at.y)
    AT(struct node, left)
    AT(struct node, parts)
    AT(struct node, list)
    AT(struct node, grid)
    AT(struct node, ok)
    AT(struct node, ratio)
    AT(struct node, exact)
    AT(struct node, wide)
    AT(struct node, call)
    AT(struct node, bits)
    AT(struct node, tight)
    AT(struct node, tight.l)
    AT(struct node, either)
    AT(struct node, last)
    AT(struct mix, y)
    return n;
}

static const struct command commands[] = {{"visits", visits},   {"values", values},   {"results", results}, {"fillers", fillers},
                                          {"locals", locals}, {"layouts", layouts}, {}};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
