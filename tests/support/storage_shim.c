/* The disk under a target's file, with the faults of disks and of the page cache above them.
 *
 * What it is. A library for LD_PRELOAD, compiled by tests/support/storage.py. It stands between a target
 * and ONE file, the image, and makes of it what the kernel makes of a file on a disk:
 *
 *   image    the page cache: every write is in it at once, every read sees it, and so it outlives a
 *            process that is killed.
 *   shadow   the disk: a second file of that size. Into it goes only what was made stable: at fdatasync
 *            and fsync every dirty block, at a write with RWF_DSYNC the blocks of this write.
 *   control  a mapped file that both sides see: the test's orders, counters, and the state of each
 *            block (struct control). It outlives the process, too.
 *
 * A power cut is made by the test, when the process is dead: of the blocks that are dirty a random
 * part goes to the shadow, as write-back may have done by itself; then the image becomes what the
 * shadow is. Blocks have 4 KiB, the page of the cache; one is never torn, and any may be lost without
 * its neighbours. The real fdatasync is not called: nothing here depends on the machine's own disk.
 *
 * Errors are Linux's (Documentation/filesystems/errseq, fs/sync.c):
 *   - write-back that fails leaves the page in the cache, clean: reads still see it, it is gone at the
 *     power cut, and no later sync tries again;
 *   - the error is told once, to the first fsync, fdatasync or synchronous write that comes along;
 *     so a synchronous write may get, and take away, the error of somebody else's pages.
 *
 * Orders (a zero means no such fault, unless said otherwise):
 *   fail_sync    the n-th sync from now fails with fail_errno, and half of the dirty blocks are lost.
 *                Which half is a matter of `seed`. Synchronous writes count as syncs.
 *   space        blocks that the disk has left; -1 is enough for ever. A block that is on the shadow, or
 *                is all zero, needs none.
 *   space_late   0: a plain write of a block for which there is no room fails with ENOSPC (an ordinary
 *                file system). 1: it succeeds, and its write-back fails (a thin pool below).
 *   hang_sync    the n-th sync from now, and what syncs behind it, waits as long as `hang` is 1.
 *   read_first, read_last   reads of these blocks fail with EIO; no such fault if last is 0.
 *
 * A sync of the folder that the image is in is the kernel's, and counted.
 *
 * Shrinking needs no order: the test cuts off the image. Removing what is mapped by nobody else is the
 * test's business as well. Not here: damage of what was stable, reordering within a block, O_DIRECT.
 *
 * Writers hold the lock shared, a sync holds it alone, so a block is never copied while it is written.
 * A block is marked dirty when its write is done: then the next sync is sure to have all of it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK 4096
#define MAGIC 0x656e6b616b753031
#define HANG_US 5000

enum { CLEAN, DIRTY, LOST };

/* Laid out as tests/support/storage.py reads it: 64-bit fields, then one byte a block, twice. */
struct control {
    uint64_t magic, blocks;
    /* the test's orders */
    int64_t fail_sync, fail_errno, space, space_late, hang_sync, hang, read_first, read_last, seed;
    /* counters */
    int64_t writes, sync_writes, syncs, errors, lost, hanging, folder_syncs;
    uint8_t state[];
};

static struct control *control;
static uint8_t *stored;  /* 1: the shadow has something in this block */
static int shadow = -1;
static dev_t device;
static ino_t inode;
static struct stat folder; /* the image's */
static int pending;      /* the error of a write-back, until it is told */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static ssize_t (*real_pwritev2)(int, const struct iovec *, int, off_t, int);
static ssize_t (*real_preadv2)(int, const struct iovec *, int, off_t, int);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_fdatasync)(int);
static int (*real_fsync)(int);
static int (*real_fallocate)(int, int, off_t, off_t);

static void die(const char *why) {
    dprintf(2, "storage_shim: %s: %s\n", why, strerror(errno));
    abort();
}

__attribute__((constructor)) static void begin(void) {
    real_pwritev2 = dlsym(RTLD_NEXT, "pwritev2");
    real_preadv2 = dlsym(RTLD_NEXT, "preadv2");
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fallocate = dlsym(RTLD_NEXT, "fallocate");
    const char *image = getenv("ENKAKU_SHIM_IMAGE");
    if (!image)
        return;
    struct stat status;
    if (stat(image, &status))
        die(image);
    device = status.st_dev, inode = status.st_ino;
    char above[4096];
    const char *name = strrchr(image, '/');
    if (!name || name - image >= (long)sizeof above)
        die("the image's path has to be absolute");
    snprintf(above, sizeof above, "%.*s", (int)(name - image), image);
    if (stat(above, &folder))
        die(above);
    const char *path = getenv("ENKAKU_SHIM_SHADOW");
    if (!path || (shadow = open(path, O_RDWR | O_CLOEXEC)) < 0)
        die("no shadow");
    path = getenv("ENKAKU_SHIM_CONTROL");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0 || fstat(file, &status))
        die("no control file");
    void *mapped = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        die("control file");
    close(file);
    struct control *found = mapped;
    if (found->magic != MAGIC)
        die("the control file is another");
    stored = found->state + found->blocks;
    control = found;
}

/* Whether this descriptor is the image's. */
static int ours(int fd) {
    struct stat status;
    return control && !fstat(fd, &status) && status.st_ino == inode && status.st_dev == device;
}

static uint64_t of(off_t offset) { return (uint64_t)offset / BLOCK; }

static void count(int64_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

/* A coin that falls the same way for the same seed and block. */
static int coin(uint64_t block) {
    uint64_t x = block * 0x9e3779b97f4a7c15u ^ (uint64_t)control->seed * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31, x *= 0x94d049bb133111ebu, x ^= x >> 29;
    return x & 1;
}

/* Write-back of one block; the lock is held alone. Returns 0 or an errno. */
static int write_back(int fd, uint64_t block) {
    static const char zeroes[BLOCK];
    char data[BLOCK];
    memset(data, 0, BLOCK);
    if (real_pread(fd, data, BLOCK, block * BLOCK) < 0)
        return errno;
    int zero = !memcmp(data, zeroes, BLOCK);
    if (!stored[block] && !zero) {
        if (!control->space) {
            control->state[block] = LOST;
            count(&control->lost);
            return ENOSPC;
        }
        if (control->space > 0)
            control->space--;
        stored[block] = 1;
    }
    if (zero) {
        if (stored[block] && control->space >= 0)
            control->space++;
        stored[block] = 0;
        real_fallocate(shadow, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block * BLOCK, BLOCK);
    } else if (real_pwrite(shadow, data, BLOCK, block * BLOCK) != BLOCK) {
        return EIO;
    }
    control->state[block] = CLEAN;
    return 0;
}

/* Counts down an order; true when its time has come. */
static int due(int64_t *order) { return *order > 0 && --*order == 0; }

/* Makes blocks [first, last] stable; the lock is held alone. Returns 0 or the errno to be told. */
static int make_stable(int fd, uint64_t first, uint64_t last) {
    int failed = 0;
    if (due(&control->fail_sync)) {
        failed = control->fail_errno ? control->fail_errno : EIO;
        for (uint64_t block = 0; block < control->blocks; block++)
            if (control->state[block] == DIRTY && coin(block)) {
                control->state[block] = LOST;
                count(&control->lost);
            }
    }
    /* A full pool has failed everybody's write-back, not only that of these blocks. */
    if (control->space_late && !control->space)
        first = 0, last = control->blocks - 1;
    for (uint64_t block = first; block <= last && block < control->blocks; block++)
        if (control->state[block] == DIRTY) {
            int error = write_back(fd, block);
            if (error)
                failed = error;
        }
    if (failed)
        pending = failed;
    failed = pending, pending = 0;
    if (failed)
        count(&control->errors);
    return failed;
}

static void hang_if_told(void) {
    int due_now = due(&control->hang_sync);
    if (due_now)
        control->hang = 1;
    if (!__atomic_load_n(&control->hang, __ATOMIC_ACQUIRE))
        return;
    count(&control->hanging);
    while (__atomic_load_n(&control->hang, __ATOMIC_ACQUIRE))
        usleep(HANG_US);
    __atomic_sub_fetch(&control->hanging, 1, __ATOMIC_RELAXED);
}

static int sync_image(int fd) {
    hang_if_told();
    pthread_rwlock_wrlock(&lock);
    count(&control->syncs);
    int failed = make_stable(fd, 0, control->blocks - 1);
    pthread_rwlock_unlock(&lock);
    errno = failed;
    return failed ? -1 : 0;
}

int fdatasync(int fd) { return ours(fd) ? sync_image(fd) : real_fdatasync(fd); }

int fsync(int fd) {
    if (ours(fd))
        return sync_image(fd);
    struct stat status;
    int failed = real_fsync(fd);
    if (control && !failed && !fstat(fd, &status) && status.st_ino == folder.st_ino
        && status.st_dev == folder.st_dev)
        count(&control->folder_syncs);
    return failed;
}

/* Reserves room for these blocks, where plain writes must have it; the write-back will use it. */
static int reserve(uint64_t first, uint64_t last) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    if (control->space < 0 || control->space_late)
        return 1;
    int64_t wanted = 0;
    pthread_mutex_lock(&one);
    for (uint64_t block = first; block <= last && block < control->blocks; block++)
        wanted += !stored[block];
    int fits = wanted <= control->space;
    if (fits) {
        control->space -= wanted;
        for (uint64_t block = first; block <= last && block < control->blocks; block++)
            stored[block] = 1;
    }
    pthread_mutex_unlock(&one);
    return fits;
}

static ssize_t write_image(int fd, const struct iovec *vectors, int n, off_t at, int flags) {
    int stable = flags & (RWF_DSYNC | RWF_SYNC);
    if (stable)
        hang_if_told();
    size_t length = 0;
    for (int i = 0; i < n; i++)
        length += vectors[i].iov_len;
    if (!length)
        return real_pwritev2(fd, vectors, n, at, flags & ~(RWF_DSYNC | RWF_SYNC));
    uint64_t first = of(at), last = of(at + length - 1);
    if (stable)
        pthread_rwlock_wrlock(&lock);
    else
        pthread_rwlock_rdlock(&lock);
    ssize_t done = -1;
    int failed = reserve(first, last) ? 0 : ENOSPC;
    if (!failed) {
        done = real_pwritev2(fd, vectors, n, at, flags & ~(RWF_DSYNC | RWF_SYNC));
        failed = done < 0 ? errno : 0;
    } else {
        count(&control->errors);
    }
    if (done > 0) {
        count(stable ? &control->sync_writes : &control->writes);
        for (uint64_t block = first; block <= of(at + done - 1) && block < control->blocks; block++)
            control->state[block] = DIRTY;
        if (stable && (failed = make_stable(fd, first, of(at + done - 1))))
            done = -1;
    }
    pthread_rwlock_unlock(&lock);
    errno = failed;
    return done;
}

ssize_t pwritev2(int fd, const struct iovec *vectors, int n, off_t at, int flags) {
    return ours(fd) ? write_image(fd, vectors, n, at, flags)
                    : real_pwritev2(fd, vectors, n, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *vectors, int n, off_t at, int flags) {
    return pwritev2(fd, vectors, n, at, flags);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off_t at) {
    struct iovec vector = {(void *)data, length};
    return ours(fd) ? write_image(fd, &vector, 1, at, 0) : real_pwrite(fd, data, length, at);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t at) {
    return pwrite64(fd, data, length, at);
}

static int unreadable(off_t at, size_t length) {
    return control->read_last && length && (int64_t)of(at) <= control->read_last
        && (int64_t)of(at + length - 1) >= control->read_first;
}

ssize_t preadv2(int fd, const struct iovec *vectors, int n, off_t at, int flags) {
    if (ours(fd)) {
        size_t length = 0;
        for (int i = 0; i < n; i++)
            length += vectors[i].iov_len;
        if (unreadable(at, length)) {
            count(&control->errors);
            errno = EIO;
            return -1;
        }
    }
    return real_preadv2(fd, vectors, n, at, flags);
}

ssize_t preadv64v2(int fd, const struct iovec *vectors, int n, off_t at, int flags) {
    return preadv2(fd, vectors, n, at, flags);
}

ssize_t pread64(int fd, void *data, size_t length, off_t at) {
    if (ours(fd) && unreadable(at, length)) {
        count(&control->errors);
        errno = EIO;
        return -1;
    }
    return real_pread(fd, data, length, at);
}

ssize_t pread(int fd, void *data, size_t length, off_t at) { return pread64(fd, data, length, at); }

/* Holes and zeroes are as little stable as writes are. */
int fallocate(int fd, int mode, off_t at, off_t length) {
    if (!ours(fd))
        return real_fallocate(fd, mode, at, length);
    pthread_rwlock_rdlock(&lock);
    int done = real_fallocate(fd, mode, at, length), failed = errno;
    if (!done && length > 0)
        for (uint64_t block = of(at); block <= of(at + length - 1) && block < control->blocks; block++)
            control->state[block] = DIRTY;
    pthread_rwlock_unlock(&lock);
    errno = failed;
    return done;
}

int fallocate64(int fd, int mode, off_t at, off_t length) { return fallocate(fd, mode, at, length); }
