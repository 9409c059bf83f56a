/* Types of all shapes. Scripts declare the same text. */
enum colour { RED, GREEN = 5, BLUE, LAST = BLUE + 10 };
enum wide { BELOW = -3, ABOVE = 1 << 20 };
typedef unsigned int number;

struct small {
    char c;
    short s;
    char d;
};

struct bits {
    unsigned a : 3, b : 7;
    int c : 5;
    unsigned long long d : 40;
    unsigned char e : 4;
    unsigned char f : 5;
    int : 0;
    int g : 9;
    short h;
    enum colour i : 5;
    long long j : 33;
    _Bool k : 1;
};

struct tight {
    char c;
    int i;
    unsigned a : 3;
    unsigned b : 30;
    long long l;
    short s;
} __attribute__((packed));

union either {
    int i;
    char bytes[7];
    double d;
};

struct node {
    struct node *next;
    const char *name;
    number id;
    char tag[6];
    enum colour colour;
    struct small inner;
    struct { short x, y; } at;
    union { int left; unsigned char parts[4]; };
    struct small list[3];
    int grid[2][3];
    _Bool ok;
    float ratio;
    double exact;
    enum wide wide;
    int (*call)(int, const char *);
    struct bits bits;
    struct tight tight;
    union either either;
    long last;
};

struct pair { long a, b; };
struct mix { int n; float x; double y; };
struct large { long w[5]; };
