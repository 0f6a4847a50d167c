// What reads and writes in the guest, and what its kernel's structures look like; static, no library.
//
//   meter fill PATH BYTES                        every 8 bytes are their offset
//   meter read PATH BLOCK BYTES SECONDS RAMP     one call after the other, through the page cache
//   meter write PATH BLOCK BYTES SECONDS RAMP    one call after the other, O_DIRECT, from the start again
//   meter send ADDRESS PORT BLOCK BYTES          through a socket, blocking
//   meter sink PORT                              takes one connection's bytes; prints "ready" before
//   meter offsets STRUCT MEMBER...               bytes from the structure's start, from the kernel's BTF
//   meter no-tso DEVICE                          the kernel cuts into packets what the device would
//
// `read` and `write` print one line of JSON. They end after BYTES or SECONDS, and do not count the first
// RAMP seconds. Counted is from one call that had to wait to another: what was fetched ahead of the last
// one is not, and what was fetched before the clock began is not either.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/btf.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT 4096
#define FILL_BYTES (1 << 20)
#define BTF "/sys/kernel/btf/vmlinux"
// A call that took as long has waited for the network: what is in memory takes a tenth, 1 MiB a call.
#define WAITED_S 0.002

static void die(const char *what) {
    fprintf(stderr, "meter: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void *buffer(size_t bytes) {
    void *made;
    if (posix_memalign(&made, ALIGNMENT, bytes)) die("no memory");
    return made;
}

static void pattern(uint64_t *words, size_t bytes, uint64_t offset) {
    for (size_t at = 0; at < bytes / 8; at++) words[at] = offset + at * 8;
}

static int fill(const char *path, uint64_t bytes) {
    uint64_t *words = buffer(FILL_BYTES);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0) die(path);
    for (uint64_t at = 0; at < bytes; at += FILL_BYTES) {
        pattern(words, FILL_BYTES, at);
        if (write(file, words, FILL_BYTES) != FILL_BYTES) die(path);
    }
    return close(file);
}

static int same(const uint64_t *words, size_t bytes, uint64_t offset) {
    for (size_t at = 0; at < bytes / 8; at++)
        if (words[at] != offset + at * 8) return 0;
    return 1;
}

static int transfer(int writes, const char *path, size_t block, uint64_t bytes_max, double seconds_max, double ramp_s) {
    char *words = buffer(block);
    int file = open(path, writes ? O_WRONLY | O_DIRECT : O_RDONLY);
    if (file < 0) die(path);
    int64_t size = lseek(file, 0, SEEK_END);
    if (size < (int64_t)block) { errno = EINVAL; die(path); }
    if (writes) pattern((uint64_t *)words, block, 0);
    double begun = now_s(), from_s = begun, to_s = begun;
    uint64_t bytes = 0, from_bytes = 0, to_bytes = 0, calls = 0;
    int right = 1, counting = ramp_s == 0, failed = 0;
    uint64_t stop = bytes_max;
    while (bytes < stop) {
        uint64_t at = bytes % (size - size % block);
        if (!writes && bytes + block > (uint64_t)size) break;
        double before = now_s();
        ssize_t got = writes ? pwrite(file, words, block, at) : pread(file, words, block, at);
        if (got <= 0) { failed = errno; break; }
        double after = now_s();
        bytes += got;
        calls++;
        if (!writes && right) right = same((uint64_t *)words, got, at);
        if (writes || after - before > WAITED_S || bytes == stop) {
            to_s = after;
            to_bytes = bytes;
            if (!counting && after - begun >= ramp_s) {
                counting = 1;
                from_s = after;
                from_bytes = bytes;
                stop = bytes + bytes_max;
            }
        }
        if (after - begun >= ramp_s + seconds_max) break;
    }
    close(file);
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"all_bytes\": %llu, \"all_seconds\": %.6f, \"calls\": %llu, \"right\": %s, \"error\": \"%s\"}\n",
           (unsigned long long)(to_bytes - from_bytes), to_s - from_s, (unsigned long long)bytes, now_s() - begun,
           (unsigned long long)calls, right ? "true" : "false", failed ? strerror(failed) : "");
    return 0;
}

static char *whole(const char *path, size_t *bytes) {
    int file = open(path, O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about)) die(path);
    char *content = buffer(about.st_size);
    for (*bytes = 0; *bytes < (size_t)about.st_size;) {
        ssize_t got = read(file, content + *bytes, about.st_size - *bytes);
        if (got <= 0) die(path);
        *bytes += got;
    }
    close(file);
    return content;
}

// Bytes of what follows a type in the section.
static size_t more(const struct btf_type *type) {
    unsigned count = BTF_INFO_VLEN(type->info);
    switch (BTF_INFO_KIND(type->info)) {
    case BTF_KIND_INT: case BTF_KIND_VAR: case BTF_KIND_DECL_TAG: return 4;
    case BTF_KIND_ARRAY: return sizeof(struct btf_array);
    case BTF_KIND_STRUCT: case BTF_KIND_UNION: return count * sizeof(struct btf_member);
    case BTF_KIND_ENUM: return count * sizeof(struct btf_enum);
    case BTF_KIND_ENUM64: return count * 12;
    case BTF_KIND_FUNC_PROTO: return count * sizeof(struct btf_param);
    case BTF_KIND_DATASEC: return count * sizeof(struct btf_var_secinfo);
    default: return 0;
    }
}

static int offsets(const char *structure, int count, char **members) {
    size_t bytes;
    char *content = whole(BTF, &bytes);
    const struct btf_header *head = (void *)content;
    const char *strings = content + head->hdr_len + head->str_off;
    char *at = content + head->hdr_len + head->type_off, *end = at + head->type_len;
    while (at < end) {
        const struct btf_type *type = (void *)at;
        const struct btf_member *member = (void *)(at + sizeof *type);
        at += sizeof *type + more(type);
        if (BTF_INFO_KIND(type->info) != BTF_KIND_STRUCT || strcmp(strings + type->name_off, structure)) continue;
        for (int wanted = 0; wanted < count; wanted++)
            for (unsigned i = 0; i < BTF_INFO_VLEN(type->info); i++)
                if (!strcmp(strings + member[i].name_off, members[wanted]))
                    printf("%s %u\n", members[wanted], BTF_MEMBER_BIT_OFFSET(member[i].offset) / 8);
        return 0;
    }
    errno = ENOENT;
    die(structure);
    return 1;
}

static int stream(struct sockaddr_in *where, const char *address, const char *port) {
    *where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int made = socket(AF_INET, SOCK_STREAM, 0);
    if (made < 0 || inet_pton(AF_INET, address, &where->sin_addr) != 1) die(address);
    return made;
}

static int send_all(const char *address, const char *port, size_t block, uint64_t bytes) {
    struct sockaddr_in where;
    char *words = buffer(block);
    int to = stream(&where, address, port);
    if (connect(to, (struct sockaddr *)&where, sizeof where)) die(address);
    while (bytes) {
        ssize_t sent = write(to, words, bytes < block ? bytes : block);
        if (sent < 0) die(address);
        bytes -= sent;
    }
    return close(to);
}

static int sink(const char *port) {
    struct sockaddr_in where;
    char *words = buffer(FILL_BYTES);
    int one = 1, at = stream(&where, "0.0.0.0", port);
    setsockopt(at, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(at, (struct sockaddr *)&where, sizeof where) || listen(at, 1)) die(port);
    puts("ready");
    fflush(stdout);
    int from = accept(at, NULL, NULL);
    if (from < 0) die(port);
    while (read(from, words, FILL_BYTES) > 0);
    return close(from);
}

static int no_tso(const char *device) {
    struct ethtool_value off = {.cmd = ETHTOOL_STSO, .data = 0};
    struct ifreq asked = {.ifr_data = (char *)&off};
    strncpy(asked.ifr_name, device, IFNAMSIZ - 1);
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    if (any < 0 || ioctl(any, SIOCETHTOOL, &asked)) die(device);
    return close(any);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "fill")) return fill(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 7 && (!strcmp(argv[1], "read") || !strcmp(argv[1], "write")))
        return transfer(argv[1][0] == 'w', argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), atof(argv[5]), atof(argv[6]));
    if (argc >= 4 && !strcmp(argv[1], "offsets")) return offsets(argv[2], argc - 3, argv + 3);
    if (argc == 6 && !strcmp(argv[1], "send")) return send_all(argv[2], argv[3], strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
    if (argc == 3 && !strcmp(argv[1], "sink")) return sink(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "no-tso")) return no_tso(argv[2]);
    fprintf(stderr, "usage: meter fill|read|write|send|sink|offsets|no-tso ...\n");
    return 2;
}
