/* A library that checks return addresses. */
#include <stdint.h>

/* 1: the word at `slot` leads elsewhere than into this code. */
long leads_elsewhere(const uintptr_t *slot, uintptr_t start, uintptr_t end) { return *slot < start || *slot >= end; }
