/* Writes numbers over a disk, one block after the other in an order that looks like none, each stable before
 * the next begins, and says each number when it is. What is there after a cut is then the state after some
 * number of writes, or no state that the disk ever had (enkaku_lab/stamped.py).
 *
 *     stamper DISK BLOCKS FIRST COUNT PAUSE_US
 *
 * Block of n: n * STEP mod BLOCKS, BLOCKS a power of two. COUNT 0 never ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 4096, WORDS = BLOCK / 8, STEP = 40503 };

int main(int argc, char **argv) {
    if (argc != 6)
        return 2;
    uint64_t blocks = strtoull(argv[2], 0, 0), first = strtoull(argv[3], 0, 0);
    uint64_t count = strtoull(argv[4], 0, 0);
    useconds_t pause_us = strtoul(argv[5], 0, 0);
    int disk = open(argv[1], O_RDWR | O_DIRECT);
    uint64_t *page = aligned_alloc(BLOCK, BLOCK);
    if (disk < 0 || !page) {
        perror(argv[1]);
        return 1;
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    for (uint64_t n = first; !count || n < first + count; n++) {
        for (int word = 0; word < WORDS; word++)
            page[word] = n;
        off_t place = n * STEP % blocks * BLOCK;
        if (pwrite(disk, page, BLOCK, place) != BLOCK || fdatasync(disk)) {
            perror("refused");
            return 1;
        }
        printf("stable %llu\n", (unsigned long long)n);
        usleep(pause_us);
    }
    return 0;
}
