/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * TCP's events for `enkaku monitor --events`, one program per place in the kernel, so that what a
 * kernel refuses takes nothing else away. Nothing is changed; nothing is read but headers and counters.
 *
 * tp_btf (Linux 5.5) is allowed wherever BPF is; fentry and fexit need the kernel's function tracer.
 */
#include "acknowledgement.h"

/* Helpers that read kernel memory are for programs under a licence that goes with the GPL. */
char _license[] SEC("license") = "Dual MIT/GPL";

/* An established connection has received a segment, which is not processed yet. */
SEC("tp_btf/tcp_probe")
int tcp_probe(u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	u64 cookie;
	struct connection *connection = connection_of(sk, &cookie);
	if (!connection)
		return 0;
	look_at_acknowledgement(sk, (struct sk_buff *)context[1], connection, cookie);
	connection->number[PROBE] += 1;
	u64 now_ns = bpf_ktime_get_ns();
	if (now_ns - connection->probe_ns < probe_interval_ns)
		return 0;
	connection->probe_ns = now_ns;
	struct particulars none = {};
	tell(sk, connection, cookie, now_ns, PROBE, none);
	return 0;
}

/* A segment has been sent again; TCP has counted it already. Newer kernels (Linux 6.17) come here too
 * when it was not sent, because the first one still waits in the device; that is not counted. */
SEC("tp_btf/tcp_retransmit_skb")
int tcp_retransmit(u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	struct sk_buff *skb = (struct sk_buff *)context[1];
	u64 cookie;
	struct connection *connection = connection_of(sk, &cookie);
	if (!connection)
		return 0;
	u32 total = READ((struct tcp_sock *)sk, total_retrans);
	if (total == connection->total_retrans)
		return 0;
	connection->total_retrans = total;
	struct tcp_skb_cb *control = (struct tcp_skb_cb *)&skb->cb;
	u16 segments = READ(control, tcp_gso_segs);
	struct particulars again = { .segments = segments ? segments : 1, .bytes = READ(skb, len) };
	happened(sk, connection, cookie, RETRANSMIT, again);
	return 0;
}

/* The retransmission timer has expired: everything in flight is taken for lost. */
SEC("fentry/tcp_enter_loss")
int retransmission_timeout(u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	u64 cookie;
	struct connection *connection = connection_of(sk, &cookie);
	struct particulars none = {};
	if (connection)
		happened(sk, connection, cookie, RTO, none);
	return 0;
}

/* The device or its queue has dropped or marked what was sent; so has the path, where ECN is used. */
SEC("fentry/tcp_enter_cwr")
int local_congestion(u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	u64 cookie;
	struct connection *connection = connection_of(sk, &cookie);
	struct particulars none = {};
	if (connection)
		happened(sk, connection, cookie, LOCAL_CONGESTION, none);
	return 0;
}

/* A sender begins to wait for memory. */
SEC("fentry/sk_stream_wait_memory")
int send_wait_begin(u64 *context)
{
	u64 cookie;
	struct connection *connection = connection_of((struct sock *)context[0], &cookie);
	if (connection && !connection->wait_ns)
		connection->wait_ns = bpf_ktime_get_ns();
	return 0;
}

INLINE void waited(struct sock *sk, struct connection *connection, u64 cookie)
{
	u64 wait_us = (bpf_ktime_get_ns() - connection->wait_ns) / 1000;
	connection->wait_ns = 0;
	struct particulars wait = { .wait_us = wait_us > ~0U ? ~0U : wait_us };
	happened(sk, connection, cookie, SEND_WAIT, wait);
}

#define EAGAIN 11

/* A sender that blocks has waited. One that does not is told to come again, and its wait goes on. */
SEC("fexit/sk_stream_wait_memory")
int send_wait_end(u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	u64 cookie;
	struct connection *connection = connection_of(sk, &cookie);
	if (connection && connection->wait_ns && (s32)context[2] != -EAGAIN)
		waited(sk, connection, cookie);
	return 0;
}

/* There is room again, perhaps: the same condition as sk_stream_is_writeable(), by which senders
 * are woken. */
SEC("fentry/sk_stream_write_space")
int send_wait_room(u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	u64 cookie;
	struct connection *connection = connection_of(sk, &cookie);
	if (!connection || !connection->wait_ns)
		return 0;
	s32 queued = READ(sk, sk_wmem_queued);
	if (READ(sk, sk_sndbuf) - queued >= queued >> 1)
		waited(sk, connection, cookie);
	return 0;
}
