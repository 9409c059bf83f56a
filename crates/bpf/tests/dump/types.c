// Values of all types that BTF knows, in maps and in variables.
#include "../object/bpf.h"
typedef char letter;
enum colour { RED, GREEN = 5, BLUE = -1 };
// bpftool takes bytes above 127 for negative and does not find their names.
enum __attribute__((packed)) small { TINY = 100 };
struct inner {
    short a;
    unsigned short b;
};
struct all {
    char c;
    signed char sc;
    unsigned char uc;
    short s;
    unsigned short us;
    int i;
    unsigned u;
    long long l;
    u64 ul;
    unsigned __int128 wide;
    char text[16];
    const char other[8];
    unsigned char bytes[4];
    const char *string;
    void *pointer;
    enum colour colours[4];
    enum small small;
    struct inner inner[2];
    union {
        int x;
        char y[4];
    } u2;
    struct {
        int anonymous;
    };
    unsigned three : 3, thirteen : 13;
    int seven : 7;
    u64 forty : 40;
    char matrix[2][4];
    letter letters[4];
    int (*function)(int);
    struct all *self;
    int none[0];
    // The last, with nothing behind it: bpftool reads four bytes of a bool.
    _Bool yes;
};
struct {
    __uint(type, HASH);
    __uint(max_entries, 64);
    __type(key, struct inner);
    __type(value, struct all);
} all SEC(".maps");
struct {
    __uint(type, PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, u32);
    __type(value, struct inner);
} each SEC(".maps");
struct {
    __uint(type, HASH);
    __uint(max_entries, 4);
    __uint(key_size, 4);
    __uint(value_size, 3);
} plain SEC(".maps");

const volatile int limit = 7;
const volatile char greeting[8] = "hello";
volatile u64 hits = 3;
static volatile short hidden = -4;
volatile struct inner pair = { 1, 2 };
volatile int zero;
static volatile int hidden_zero;
volatile enum colour colour = GREEN;

SEC("uprobe") int prog(void *c)
{
    struct inner key = {};
    u32 index = 0;
    map_lookup(&all, &key);
    map_lookup(&each, &index);
    map_lookup(&plain, &index);
    hidden_zero++;
    return hits + hidden + zero + pair.a + limit + greeting[1] + colour;
}
char LICENSE[] SEC("license") = "GPL";
