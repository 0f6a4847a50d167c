# The APT study's network in ns-2: one iSCSI session whose N connections read from one target.
#
# A read is a request of one segment, a wait for the storage, and one Data-In PDU over FullTcp/Tahoe.
# Connections are logged in, added and removed while reads go on. Every sampling interval the
# throughput is told to a tuner (`enkaku tune --stdio`) over a pipe, which answers the wanted N.
# What happens is written to standard output as JSON lines; nothing is decided here.
#
# Parameters are pairs NAME VALUE on the command line; the defaults are the study's. With a `scale` a
# packet stands for so many times its bytes, in what the tuner and standard output are told: sequence
# numbers have 31 bits here, and a fast line too many packets. `tell_rtt` tells the tuner the empty
# path's round trip, which a real socket knows.

array set opt {
    rate 1e9  rtt 0.010  queue 500  window_bytes 65536  segment 1460
    pdu_bytes 1048576  storage_min 0.030  storage_max 0.040
    n 4  n_max 256  seconds 20  seed 1  interval 0.1  tuner {}  trace {}  reads 0  steps {}
    competitor_window_bytes 1048576  idle_restart true  scale 1  tell_rtt 0
}
foreach {name value} $argv {
    if {![info exists opt($name)]} { puts stderr "$name: no such parameter"; exit 2 }
    set opt($name) $value
}

# Headers that nothing uses cost half of the time.
remove-all-packet-headers
add-packet-header IP TCP Common Flags
set ns [new Simulator]
$ns use-scheduler Heap

Agent/TCP/FullTcp set segsize_ $opt(segment)
Agent/TCP/FullTcp set window_ [expr {int($opt(window_bytes) / $opt(segment))}]
# A new slow start after an idle time of an RTO (RFC 5681 §4.1).
Agent/TCP set slow_start_restart_ $opt(idle_restart)
set HEADERS 40
set REQUEST_BYTES 48
set LOGIN_BYTES 512
# Login request and response, as often: leading text and operational parameters.
set LOGIN_ROUNDS 2

set near [$ns node]
set far [$ns node]
$ns duplex-link $far $near $opt(rate) [expr {$opt(rtt) / 2.0}] DropTail
$ns queue-limit $far $near $opt(queue)
$ns queue-limit $near $far $opt(queue)

set random [new RNG]
$random seed $opt(seed)
set storage [new RandomVariable/Uniform]
$storage use-rng $random
$storage set min_ $opt(storage_min)
$storage set max_ $opt(storage_max)

# Connections by id, in the order in which they were opened. `wanted` are to go on reading,
# `ready` are logged in.
set next_id 0
set wanted {}
array set ready {}

proc open_connection {} {
    global ns near far next_id wanted sender receiver at_far at_near opened acked
    set id $next_id
    incr next_id
    set sender($id) [new Agent/TCP/FullTcp/Tahoe]
    set receiver($id) [new Agent/TCP/FullTcp/Tahoe]
    $ns attach-agent $far $sender($id)
    $ns attach-agent $near $receiver($id)
    $ns connect $receiver($id) $sender($id)
    $sender($id) listen
    set at_far($id) [new Application/TcpApp $sender($id)]
    set at_near($id) [new Application/TcpApp $receiver($id)]
    $at_far($id) connect $at_near($id)
    set opened($id) [$ns now]
    set acked($id) 0
    lappend wanted $id
    log_in $id 0
}

proc log_in {id round} {
    global LOGIN_BYTES LOGIN_ROUNDS at_near ready wanted
    if {$round == $LOGIN_ROUNDS} {
        set ready($id) 1
        next_read $id
        return
    }
    $at_near($id) send $LOGIN_BYTES "logged_in $id $round"
}

proc logged_in {id round} {
    global LOGIN_BYTES at_far
    $at_far($id) send $LOGIN_BYTES "log_in $id [expr {$round + 1}]"
}

# A connection that is no longer wanted finishes its Data-In and is then closed.
proc next_read {id} {
    global ns wanted at_near begun REQUEST_BYTES ready receiver sender
    if {[lsearch -exact $wanted $id] < 0} {
        unset ready($id)
        $receiver($id) close
        $sender($id) close
        return
    }
    set begun($id) [$ns now]
    $at_near($id) send $REQUEST_BYTES "at_target $id"
}

proc at_target {id} {
    global ns storage
    $ns after [$storage value] "data_in $id"
}

proc data_in {id} {
    global at_far opt
    $at_far($id) send $opt(pdu_bytes) "read_done $id"
}

proc read_done {id} {
    global ns begun opt wanted reads_done
    incr reads_done
    if {$opt(reads)} {
        set now [$ns now]
        puts [format {{"kind":"read","t_s":%.6f,"id":%d,"seconds":%.6f,"n":%d}} \
            $now $id [expr {$now - $begun($id)}] [llength $wanted]]
    }
    next_read $id
}

# Bytes that the receiver has acknowledged since it was asked last.
proc delivered {id} {
    global sender acked opt
    set now [$sender($id) set ack_]
    if {$now < 0} { set now 0 }
    set bytes [expr {$now - $acked($id)}]
    set acked($id) $now
    return [expr {$bytes * $opt(scale)}]
}

proc set_connections {n close} {
    global wanted
    while {[llength $wanted] < $n} { open_connection }
    # The tuner may name one to close; the others are the youngest.
    if {[llength $wanted] > $n && $close ne ""} {
        set at [lsearch -exact $wanted $close]
        if {$at >= 0} { set wanted [lreplace $wanted $at $at] }
    }
    set wanted [lrange $wanted 0 [expr {$n - 1}]]
}

proc ask_tuner {total each n_open} {
    global pipe ns opt
    set list {}
    foreach {id bytes age} $each {
        lappend list [format {{"id":%d,"age_s":%.3f,"bytes_per_s":%.1f}} $id $age \
            [expr {$bytes / $opt(interval)}]]
    }
    set rtt [expr {$opt(tell_rtt) ? [format {"min_rtt_us":%.0f,} [expr {$opt(rtt) * 1e6}]] : ""}]
    set line [format {{"t_s":%.6f,"n":%d,"bytes_per_s":%.1f,%s"connections":[%s]}} \
        [$ns now] $n_open [expr {$total / $opt(interval)}] $rtt [join $list ,]]
    if {[catch {puts $pipe $line; gets $pipe answer} length] || $length < 0} {
        puts stderr "the tuner has ended"
        exit 3
    }
    if {![regexp {"n":([0-9]+)} $answer -> n] || ![regexp {"phase":"([a-z]+)"} $answer -> phase]} {
        puts stderr "the tuner answered $answer"
        exit 3
    }
    set close ""
    regexp {"close":([0-9]+)} $answer -> close
    if {$n > $opt(n_max)} { set n $opt(n_max) }
    return [list $n $phase $close]
}

proc sample {} {
    global ns opt wanted ready opened sender reads_done acked
    set total 0
    set each {}
    set n_open 0
    foreach id [lsort -integer [array names acked]] {
        set bytes [delivered $id]
        set total [expr {$total + $bytes}]
        if {[info exists ready($id)] && [lsearch -exact $wanted $id] >= 0} {
            lappend each $id $bytes [expr {[$ns now] - $opened($id)}]
            incr n_open
        }
    }
    set n [llength $wanted]
    set phase "fixed"
    if {$opt(tuner) ne ""} {
        foreach {n phase close} [ask_tuner $total $each $n_open] break
    }
    set traced {}
    foreach id $opt(trace) {
        if {[info exists ready($id)]} {
            set at [lsearch -exact [every_third $each] $id]
            set bytes [expr {$at < 0 ? 0 : [lindex $each [expr {3 * $at + 1}]]}]
            lappend traced [format {{"id":%d,"cwnd":%.2f,"bytes_per_s":%.1f}} $id \
                [$sender($id) set cwnd_] [expr {$bytes / $opt(interval)}]]
        }
    }
    puts [format {{"kind":"sample","t_s":%.4f,"open":%d,"n":%d,"phase":"%s","bytes_per_s":%.1f,"reads":%d,"traced":[%s]}} \
        [$ns now] $n_open $n $phase [expr {$total / $opt(interval)}] $reads_done [join $traced ,]]
    if {$opt(tuner) ne ""} { set_connections $n $close }
    $ns after $opt(interval) sample
}

proc every_third {list} {
    set found {}
    foreach {first second third} $list { lappend found $first }
    return $found
}

# Changes of the path, "TIME WHAT VALUE …" in `steps`: rate, rtt and n (without a tuner), and
# competitor: as many long-lived TCP flows of the same kind beside the session.
proc step {what value} {
    global ns near far
    switch -- $what {
        rate - rtt {
            foreach {a b} [list $near $far $far $near] {
                set link [[$ns link $a $b] link]
                if {$what eq "rate"} { $link set bandwidth_ $value } \
                else { $link set delay_ [expr {$value / 2.0}] }
            }
        }
        n { set_connections $value "" }
        competitor { for {set i 0} {$i < $value} {incr i} { compete } }
        default { puts stderr "steps: $what is not rate, rtt, n or competitor"; exit 2 }
    }
}

proc compete {} {
    global ns near far opt
    set from [new Agent/TCP/FullTcp/Tahoe]
    set to [new Agent/TCP/FullTcp/Tahoe]
    $from set window_ [expr {int($opt(competitor_window_bytes) / $opt(segment))}]
    $ns attach-agent $far $from
    $ns attach-agent $near $to
    $ns connect $from $to
    $to listen
    set without_end [new Application/FTP]
    $without_end attach-agent $from
    $without_end start
}

set reads_done 0
if {$opt(tuner) ne ""} {
    set pipe [open "|$opt(tuner)" r+]
    fconfigure $pipe -buffering line
}
foreach {time what value} $opt(steps) { $ns at $time "step $what $value" }
$ns at 0.0 "set_connections $opt(n) {}"
$ns at $opt(interval) sample
$ns at $opt(seconds) finish

proc finish {} {
    global reads_done opt
    puts [format {{"kind":"end","t_s":%.4f,"reads":%d}} $opt(seconds) $reads_done]
    exit 0
}
$ns run
