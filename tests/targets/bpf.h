/* What programs for libbpf begin with. */
#pragma once
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAP(name, kind, key_type, value_type, entries)                                                                 \
    struct {                                                                                                           \
        __uint(type, BPF_MAP_TYPE_##kind);                                                                             \
        __uint(max_entries, entries);                                                                                  \
        __type(key, key_type);                                                                                         \
        __type(value, value_type);                                                                                     \
    } name SEC(".maps")
