/* Maps a library out of an archive, where it begins at a page, as Android's linker does. ARCHIVE is the file, AT where
 * the library begins in it. */
#include "serve.h"
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4095ul

static long (*leaf)(long);

static void *load(int file, off_t start)
{
    ElfW(Ehdr) head;
    ElfW(Phdr) segment[16];
    size_t end = 0;
    if (pread(file, &head, sizeof head, start) != sizeof head || head.e_phnum > 16)
        exit(3);
    if (pread(file, segment, head.e_phnum * sizeof *segment, start + (off_t)head.e_phoff) < 0)
        exit(3);
    for (int n = 0; n < head.e_phnum; n++)
        if (segment[n].p_type == PT_LOAD && segment[n].p_vaddr + segment[n].p_memsz > end)
            end = segment[n].p_vaddr + segment[n].p_memsz;
    char *base = mmap(NULL, end, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < head.e_phnum; n++) {
        const ElfW(Phdr) *of = &segment[n];
        size_t before = of->p_vaddr & PAGE;
        int access = (of->p_flags & PF_R ? PROT_READ : 0) | (of->p_flags & PF_W ? PROT_WRITE : 0)
            | (of->p_flags & PF_X ? PROT_EXEC : 0);
        if (of->p_type != PT_LOAD || of->p_filesz == 0)
            continue;
        if (mmap(base + of->p_vaddr - before, of->p_filesz + before, access, MAP_PRIVATE | MAP_FIXED, file,
                 start + (off_t)(of->p_offset - before)) == MAP_FAILED)
            exit(4);
    }
    return base + head.e_entry;
}

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += leaf(i);
    return sum;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "work", work }, { 0 } };
    leaf = load(open(getenv("ARCHIVE"), O_RDONLY), atol(getenv("AT")));
    return serve(argc, argv, table);
}
