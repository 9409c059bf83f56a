/* The head of the memory that a session shares with its target: wire::Header. crates/wire/tests/layout.rs compares the numbers. */
#pragma once
#include <stdint.h>

enum { LAYOUT = 22 };
enum { COMMON = 64, JOURNAL_ENTRY = 176, LIST_ENTRY = 24, MAP_DESC = 128, ASKED = 4944 };
#define MAGIC 0x5045545345444953ull /* "SIDESTEP" */

/* wire::SharedLayout */
struct layout {
    uint64_t slots_off, slot_stride, cells_off, cells, ring_off, ring_len, missed_off, shares_off, probes_max, map_descs_off,
        map_descs, journal_off, maps_off, common_off;
    uint32_t slots_max, journal_cap, maps_cap, pad;
};

struct header {
    uint64_t magic;
    uint32_t version, pad1;
    int32_t controller_pid, target_pid;
    uint64_t controller_start, total_len, shared_va, private_va, lookup_va, agent_va, agent_len, trampoline_va;
    struct layout layout;
    uint32_t journal_len, maps_len;
};
