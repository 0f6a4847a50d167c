"""The line in the guest: two hosts, which are network namespaces, and a router with netem between them.

The near end is the guest's own namespace, because there iscsid is. What a sender's kernel may notice of a queue of
its own host, as of a full netem, is not to be in the way: so the queues are in the router. Packets are as on a
wire: the ends' kernels cut what they send, as for a card that cannot, and nothing is merged.
"""

from enkaku_lab.experiment import RATES, STRETCH, Link
from enkaku_lab.peers.guest import Guest

NEAR, FAR = "10.77.0.1", "10.77.1.2"
IN_FAR = "nsenter --net=/run/netns/far"
WIRE_BYTES = 1500
SETUP = f"""
set -e
ip=/sbin/ip
$ip netns add router; $ip netns add far
$ip link add near0 type veth peer name router0 netns router
$ip link add far0 netns far type veth peer name router1 netns router
$ip addr add {NEAR}/24 dev near0
$ip link set near0 up
meter no-tso near0
$ip route add 10.77.1.0/24 via 10.77.0.254
{IN_FAR} $ip addr add {FAR}/24 dev far0
{IN_FAR} $ip link set far0 up
{IN_FAR} meter no-tso far0
{IN_FAR} $ip link set lo up
{IN_FAR} $ip route add default via 10.77.1.254
router="nsenter --net=/run/netns/router"
$router $ip addr add 10.77.0.254/24 dev router0
$router $ip addr add 10.77.1.254/24 dev router1
$router $ip link set router0 up
$router $ip link set router1 up
$router sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
for end in "" "{IN_FAR}"; do
    $end sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save'
done
"""
RTO_MIN_MS = 200
"""Linux's least retransmission timeout; stretched like everything, or it would be that much shorter."""


def set_up(guest: Guest) -> None:
    guest.run(SETUP)
    for device in ("router0", "router1"):
        guest.run(f"{_in_router()} /sbin/tc qdisc add dev {device} root netem limit 1000")


def become(guest: Guest, link: Link, *, loss: float | None = None) -> None:
    """The line as the link says, stretched; `loss` in place of the link's while something is prepared. The
    ends' congestion control and buffers are the link's, too."""
    lost = link.loss if loss is None else loss
    netem = f"rate {rate_bits(link):.0f}bit delay {delay_ms(link):.3f}ms limit {queue_packets(link)}"
    netem += f" loss {lost * 100:.6f}%" if lost else " loss 0%"
    script = "set -e\n"
    for device in ("router0", "router1"):
        script += f"{_in_router()} /sbin/tc qdisc change dev {device} root netem {netem}\n"
    for end, route in (("", "10.77.1.0/24 via 10.77.0.254"), (IN_FAR, "default via 10.77.1.254")):
        script += f"{end} /sbin/ip route change {route} rto_min {RTO_MIN_MS * STRETCH}ms congctl {link.cc}\n"
        for name, value in (
            ("tcp_wmem", _sizes(link.wmem)),
            ("tcp_rmem", _sizes(link.rmem)),
            ("tcp_window_scaling", str(int(link.window_scaling))),
        ):
            script += f"{end} sh -c 'echo {value} >/proc/sys/net/ipv4/{name}'\n"
    guest.run(script)


def rate_bits(link: Link) -> float:
    return RATES[link.rate] / STRETCH


def delay_ms(link: Link) -> float:
    return link.rtt_ms / 2 * STRETCH


def queue_packets(link: Link) -> int:
    """What netem holds: the queue and, behind it, what is on its way."""
    on_the_way = RATES[link.rate] / 8 * link.rtt_ms / 2000 / WIRE_BYTES
    return link.queue_packets + round(on_the_way)


def _in_router() -> str:
    return "nsenter --net=/run/netns/router"


def _sizes(text: str) -> str:
    """`4k 16k 4M` in bytes."""
    units = {"k": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return " ".join(
        str(int(word[:-1]) * units[word[-1]]) if word[-1] in units else word
        for word in text.split()
    )
