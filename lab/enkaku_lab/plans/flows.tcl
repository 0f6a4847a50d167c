# Long-lived TCP flows over one line with random losses, for `plan-check --engine ns2`.
#
# Agent/TCP/Linux runs the congestion controls of the Linux kernel (reno, cubic) under ns-2's own
# SACK recovery, and Sack1 acknowledges every segment. A packet is what it is on an Ethernet wire.
# Parameters are pairs NAME VALUE on the command line; one JSON line comes out: what all flows
# delivered after the first `omit` seconds.

array set opt {
    rate 1e9  rtt 0.1  loss 0  queue 1000  window 1000  flows 1  cc cubic
    wire_bytes 1538  segment_bytes 1448  omit 10  seconds 30  seed 1
}
foreach {name value} $argv {
    if {![info exists opt($name)]} { puts stderr "$name: no such parameter"; exit 2 }
    set opt($name) $value
}

remove-all-packet-headers
add-packet-header IP TCP Common Flags
set ns [new Simulator]
$ns use-scheduler Heap

# The size given is the size on the line: no headers are added to it.
Agent/TCP set useHeaders_ false
Agent/TCP set packetSize_ $opt(wire_bytes)
Agent/TCP set window_ $opt(window)
Agent/TCP set timestamps_ true
Agent/TCP set tcpTick_ 0.001
Agent/TCP set minrto_ 0.2
Agent/TCPSink set ts_echo_rfc1323_ true
Agent/TCPSink set packetSize_ 84

set near [$ns node]
set far [$ns node]
$ns duplex-link $near $far $opt(rate) [expr {$opt(rtt) / 2.0}] DropTail
$ns queue-limit $near $far $opt(queue)
$ns queue-limit $far $near 1000000

if {$opt(loss) > 0} {
    set random [new RNG]
    $random seed $opt(seed)
    set uniform [new RandomVariable/Uniform]
    $uniform use-rng $random
    set losses [new ErrorModel]
    $losses unit pkt
    $losses set rate_ $opt(loss)
    $losses ranvar $uniform
    $losses drop-target [new Agent/Null]
    $ns link-lossmodel $losses $near $far
}

# They do not begin together, or all would double and lose in the same round trips.
set starts [new RNG]
$starts seed [expr {$opt(seed) + 1000}]
for {set id 0} {$id < $opt(flows)} {incr id} {
    set sender($id) [new Agent/TCP/Linux]
    set receiver [new Agent/TCPSink/Sack1]
    $ns attach-agent $near $sender($id)
    $ns attach-agent $far $receiver
    $ns connect $sender($id) $receiver
    set transfer [new Application/FTP]
    $transfer attach-agent $sender($id)
    $ns at 0.0 "$sender($id) select_ca $opt(cc)"
    $ns at [$starts uniform 0.0 $opt(rtt)] "$transfer start"
}

proc delivered {} {
    global sender opt
    set segments 0
    for {set id 0} {$id < $opt(flows)} {incr id} {
        set segments [expr {$segments + [$sender($id) set ack_]}]
    }
    return [expr {double($segments) * $opt(segment_bytes)}]
}

proc finish {} {
    global opt before sender
    set bytes [expr {[delivered] - $before}]
    set again 0
    for {set id 0} {$id < $opt(flows)} {incr id} {
        set again [expr {$again + [$sender($id) set nrexmitpack_]}]
    }
    puts [format {{"bytes_per_s":%.1f,"retransmits":%d}} [expr {$bytes / $opt(seconds)}] $again]
    exit 0
}

$ns at $opt(omit) { set before [delivered] }
$ns at [expr {$opt(omit) + $opt(seconds)}] finish
$ns run
