/* A library that needs no other one, nor a linker. */
long leaf(long x);
long leaf(long x) { return x * 3 + 1; }
