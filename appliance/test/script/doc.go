// Package script runs behaviors that are written down as text. A script is a txtar file: it
// writes manifests, makes a change or a fault, and says what must come of it: the table of
// objects, the nft text of maps, and for each packet who answered it, which client address
// the server saw, or how it was refused. docs/reference/behaviors.md lists the behaviors with their
// scripts and tests.
//
// It is imported by tests alone and is no part of the product. The engine is testscript of
// github.com/rogpeppe/go-internal; package doc there describes lines, quoting, the prefix !
// (the command must fail) and the commands cmp, stdout, grep, env and so on.
//
// # Modes
//
// A script names its modes in its first command, "runs memory", "runs wire" or both:
//
//   - memory (TestScripts of package appliance): the loop with its store, controllers and
//     compiler on a fake kernel. The script steps the loop, and a simulator evaluates the
//     first packets of connections. It needs no rights, and all scripts take less than a
//     second. It knows no connections, no conntrack and no other programs of the box.
//   - wire (TestWire of this package): the program svcctl in network namespaces, with real
//     packets. It needs root. Each script has a network of its own, and ten run at a time,
//     unless -parallel sets another number.
//
// A line of one mode alone begins with a condition: [wire] dns .... Prefer both: then the fake kernel and the simulator are held to what the kernel does, and
// the expected sections are the same text.
//
// # The network
//
//	IN ──────────── int2 ┐     ┌ int0 ── L1, L2, near   10.180.0.0/16
//	                     gw1 ──┤
//	EXT, BLK ─ router ─ ext0 ┘   └ int1 ── R1, R2         10.181.0.0/16
//	              └── alt0
//
// gw1 is the box: 192.0.2.1 on ext0, 192.0.3.1 on alt0. IN (10.0.0.2) is an internal source
// (--cluster-cidr), EXT (203.0.113.2, and all of 203.0.113.0/25) and BLK (203.0.113.130) are
// outside. Service addresses are 172.30.0.0/16 and fd00:172:30::/112, load balancer addresses
// 198.51.100.0/28 and 2001:db8:198::/124. The variables Hosts, Interfaces and Ports have all
// addresses and what L1, L2, R1 and R2 serve.
//
// # Commands
//
// Files and the appliance:
//
//	runs memory wire          the modes of the script; its first command
//	flags --NAME=VALUE...     flags of svcctl serve; --NAME= leaves a standard flag out
//	write SECTION [NAME]      put a section of the script into the manifest directory
//	remove NAME...            remove manifests
//	box start|stop|kill|restart
//	sync                      wait until all that was written is accepted and in the kernel
//	eventually COMMAND...     try a command until it succeeds
//
// State. What is printed is compared by cmp or stdout:
//
//	objects RESOURCE [-> REGEXP]
//	                          the API's table of a list, without ages: objects services
//	nft NAME...               the named sets, maps and chains, normalized
//	problems [REGEXP...]      the problems of the status; each expression has to match a line
//	problems -> none
//	api METHOD RESOURCE [SECTION] -> CODE
//	                          a request; also MERGE (merge patch) and APPLY (server-side apply)
//	watch NAME RESOURCE       watch from now on
//	events NAME -> ADDED web, MODIFIED web
//	transactions [-> N]       how many nf_tables transactions since the last look
//
// Packets. HOST is HOST[@ADDRESS[+CLIENTS]][:PORT], where CLIENTS is a number of addresses to
// ask from; the target is [NETWORK/]ADDRESS:PORT with network tcp, udp or sctp:
//
//	connect HOST TARGET -> EXPECTATION
//	answers HOST TARGET -> EXPECTATION    ... and each server answers an equal share ± 25 %
//	ping HOST ADDRESS -> EXPECTATION
//
// An expectation is complete, nothing else may happen:
//
//	L1:80 R1:80 sees IN           both answer and see the client's own address
//	L1:80 R1:80 sees gw1          ... the box's address on the interface towards the server
//	L1:80 sees IN, L2:80 sees gw1
//	one of L1:80 L2:80 sees EXT   the same one all the time
//	refused, port-unreachable, host-unreachable, timeout; reply for a ping
//
// Faults:
//
//	flush                     another program removes all tables
//	empty ip|ip6 SET          another program removes the elements of a set or map
//	healed                    wait until the ruleset is as it was before the fault
//	address add|del INTERFACE PREFIX
//
// Only in mode memory:
//
//	advance DURATION          the clock
//	fail commits N refused|unknown|stale|other     the next N commits to the kernel
//	fail writes               the store cannot be written, as on a full disk
//	refuse ADDRESS            the kernel refuses every element that leads to this endpoint
//	fail none                 all is well again
//
// Only in mode wire:
//
//	svcctl VERB ARGS...       the program; names of sections become paths
//	shows REGEXP VERB ARGS... the program, whose output matches whatever it exits with; with eventually: in the end
//	conntrack ARGS... -> N    the number of entries that conntrack -L lists
//	dial NAME HOST TARGET -> EXPECTATION, echo NAME -> ok|reset|timeout
//	                          a TCP connection that stays open
//	dns HOST SERVER NAME TYPE -> STATUS [DATA, ...]
//	http HOST ADDRESS:PORT PATH -> CODE
//	on HOST PROGRAM ARGS...   a program on a host
//	serve HOST tcp|udp ADDRESS:PORT   a program that listens there
//	mangle SECTION NAME       overwrite a manifest in place, as a careless program does
//
// # Adding a script
//
//  1. Write testdata/NAME.txtar. Begin with a comment that says the behavior in one sentence,
//     then the modes, then the steps. Use a manifest as users write it, and full addresses.
//  2. Say what must come of it as packets first, as objects second and as nft text last, and
//     only the maps that the behavior is about.
//  3. Leave expected sections empty and run
//     go test ./appliance/reconcile -run TestScripts/^NAME$ -update
//     and review what it writes like code. With mode wire, run
//     go test -count=1 ./appliance/test/script -run TestWire/^NAME$
//     as root; both modes have to agree. (-count=1 because go test knows nothing of the program
//     that the test builds, and would tell an old result.)
//  4. Break the product once and see the script fail.
//  5. Name the script in docs/reference/behaviors.md, at the behaviors that it shows; a hygiene test
//     fails until it is there.
//
// Never wait for a fixed time: sync, eventually and healed wait for conditions. "timeout" as an
// expectation is the exception: it costs two seconds of silence on the wire.
package script
