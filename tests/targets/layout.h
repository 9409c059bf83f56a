/* The head of the memory that a session shares with its target: wire::Header. crates/wire/tests/layout.rs compares the numbers. */
#pragma once
#include <stdint.h>

enum { LAYOUT = 18 };
enum { COMMON = 64, JOURNAL_ENTRY = 176, LIST_ENTRY = 24, MAP_DESC = 128 };
#define MAGIC 0x5045545345444953ull /* "SIDESTEP" */

struct header {
    uint64_t magic;
    uint32_t version, pad1;
    int32_t controller_pid, target_pid;
    uint64_t controller_start, total_len, shared_va, private_va, lookup_va, agent_va, agent_len, trampoline_va, slots_off,
        slot_stride;
    uint32_t slots_max, pad3;
    uint64_t cells_off, cells, ring_off, ring_len, missed_off, probes_max, map_descs_off, map_descs, journal_off;
    uint32_t journal_cap, journal_len;
    uint64_t maps_off;
    uint32_t maps_cap, maps_len;
    uint64_t common_off;
};
