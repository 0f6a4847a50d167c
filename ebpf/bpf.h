/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What eBPF programs need of the kernel's interface: helpers by number (linux/bpf.h), maps, sections,
 * and reads that the loader adjusts to the running kernel (CO-RE). Clang is all that is needed to
 * compile; neither libbpf's headers nor the kernel's.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
/* Kernel types: the fields that are used, found by their names in the running kernel. */
#define KERNEL __attribute__((preserve_access_index))

/* Maps are described by the types of a struct's members. */
#define NUMBER(name, value) int (*name)[value]
#define TYPE(name, type) typeof(type) *name

enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_NOEXIST = 1,
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_RING_SIZE = 1,
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   u64 flags) = (void *)2;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_get_socket_cookie)(void *sk) = (void *)46;
static long (*bpf_probe_read_kernel)(void *to, u32 bytes, const void *from) = (void *)113;
static void *(*bpf_ringbuf_reserve)(void *ring, u64 bytes, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static u64 (*bpf_ringbuf_query)(void *ring, u64 flags) = (void *)134;

/* A member of a kernel struct; 0 where it cannot be read. */
#define READ(pointer, member)                                                          \
	({                                                                             \
		typeof((pointer)->member) value_ = 0;                                  \
		bpf_probe_read_kernel(&value_, sizeof(value_), &(pointer)->member);    \
		value_;                                                                \
	})

enum { FIELD_BYTE_OFFSET, FIELD_BYTE_SIZE, FIELD_EXISTS, FIELD_SIGNED, FIELD_LSHIFT, FIELD_RSHIFT };
#define FIELD(pointer, member, what) __builtin_preserve_field_info((pointer)->member, what)

/* The same for a member of some bits. */
#define READ_BITS(pointer, member)                                                             \
	({                                                                                     \
		u64 bits_ = 0;                                                                 \
		bpf_probe_read_kernel(&bits_, FIELD(pointer, member, FIELD_BYTE_SIZE),         \
				      (const u8 *)(pointer) +                                  \
					      FIELD(pointer, member, FIELD_BYTE_OFFSET));      \
		bits_ <<= FIELD(pointer, member, FIELD_LSHIFT);                                \
		bits_ >>= FIELD(pointer, member, FIELD_RSHIFT);                                \
		bits_;                                                                         \
	})

INLINE u32 big_endian_32(const u8 *bytes)
{
	return (u32)bytes[0] << 24 | (u32)bytes[1] << 16 | (u32)bytes[2] << 8 | bytes[3];
}

