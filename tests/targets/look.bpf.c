/* Reads of addresses of all kinds. */
#include "bpf.h"

struct seen {
    long length;
    long error;
    char text[16];
};

const struct seen *unused __attribute__((unused));

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} ring SEC(".maps");

SEC("uprobe/probed:look")
int BPF_KPROBE(on_look, const void *at)
{
    struct seen *seen = bpf_ringbuf_reserve(&ring, sizeof *seen, 0);
    long word;

    if (!seen)
        return 0;
    seen->error = bpf_probe_read_user(&word, sizeof word, at);
    __builtin_memset(seen->text, 0, sizeof seen->text);
    seen->length = bpf_probe_read_user_str(seen->text, sizeof seen->text, at);
    bpf_ringbuf_submit(seen, 0);
    return 0;
}
