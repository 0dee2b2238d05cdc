// Package sim runs the first packet of a connection through a ruleset and returns the
// outcome: a second implementation of the part of nf_tables and netfilter's NAT
// that package nft uses, small enough to be read against the kernel's.
//
// It serves tests (the kernel and this package must agree on every packet) and
// explanations (which rules took this packet). The product asks for Outcomes of a packet that comes
// first; package nft/nfttest/stateful runs packets one after another.
//
//	host := sim.Host{Ruleset: rs, Network: network}
//	for _, r := range host.Outcomes(sim.Packet{Saddr: client, Daddr: vip, Proto: nft.TCP, Dport: 80, Iif: 2}) {
//		fmt.Println(r.Kind, r.Dst)
//	}
//
// Only first packets are modeled, because NAT chains see no others; every packet is
// taken for one. Ports that NAT must change because they are taken are not modeled,
// nor is anything that is not in the ruleset: reverse path filters, sysctls, other
// tables. The kernel runs NAT chains only while connections are tracked, which takes a
// rule that reads or changes one in some table of the family; here they always run.
// It must not import netlink, read a clock or draw random numbers: time and
// choices are arguments.
//
// A ruleset that the kernel would refuse (a set or chain that is not there, chains
// nested too deep) is a mistake of the caller and panics.
package sim
