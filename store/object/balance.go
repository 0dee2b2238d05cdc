package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Annotations about who gets the next connection. Services and slices have no field for it;
// kube-router, loxilb and Cilium use annotations too.
const (
	// AnnotationBalance of a Service names the algorithm: see BalanceNames.
	AnnotationBalance = "svcctl.io/balance"
	// AnnotationWeight of an EndpointSlice, Endpoints or Pod is the weight of its endpoints.
	AnnotationWeight = "svcctl.io/weight"
	// AnnotationWeights of a Service are weights by address, which win: "10.1.2.3=5, 10.1.2.4=0".
	AnnotationWeights = "svcctl.io/weights"
	// AnnotationPriority of an EndpointSlice, Endpoints or Pod is the tier of its endpoints.
	AnnotationPriority = "svcctl.io/priority"

	// Those of Cilium are read where ours are absent.
	AnnotationCiliumBalance = "service.cilium.io/lb-algorithm"
	AnnotationCiliumWeight  = "service.cilium.io/weight"
)

// The algorithms.
const (
	BalanceRandom          = "random"
	BalanceMaglev          = "maglev"
	BalanceRoundRobin      = "round-robin"
	BalanceSourceHash      = "source-hash"
	BalanceDestinationHash = "destination-hash"
	BalanceLeastConnection = "least-connection"
)

// The largest weight and priority.
const (
	MaxWeight   = 65535
	MaxPriority = 9
)

// BalanceNames are the algorithms, sorted.
func BalanceNames() []string {
	return []string{BalanceDestinationHash, BalanceLeastConnection, BalanceMaglev, BalanceRandom, BalanceRoundRobin, BalanceSourceHash}
}

// balanceAliases are the names that IPVS and its users have for them.
var balanceAliases = map[string]string{
	"rr": BalanceRoundRobin, "wrr": BalanceRoundRobin, "mh": BalanceMaglev, "sh": BalanceSourceHash, "dh": BalanceDestinationHash,
	// All of them even out open connections by weight. That sed counts the one to come, and nq takes idle
	// endpoints first, shows with a handful of connections alone.
	"lc": BalanceLeastConnection, "wlc": BalanceLeastConnection, "sed": BalanceLeastConnection, "nq": BalanceLeastConnection, "twos": BalanceLeastConnection,
}

// ParseBalance gives the algorithm that a name, or an alias of IPVS, stands for.
func ParseBalance(value string) (name string, err error) {
	if errs := checkBalance(root(""), value); len(errs) > 0 {
		return "", fmt.Errorf("%s", errs[0].Body())
	}
	if name, is := balanceAliases[value]; is {
		return name, nil
	}
	return value, nil
}

func checkBalance(p path, value string) Errors {
	if _, alias := balanceAliases[value]; alias || slices.Contains(BalanceNames(), value) {
		return nil
	}
	return notSupported(p, value, append(BalanceNames(), sortedKeys(balanceAliases)...))
}

// ParseWeight reads the value of AnnotationWeight.
func ParseWeight(value string) (uint16, error) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("must be an integer from 0 to %d", MaxWeight)
	}
	return uint16(n), nil
}

// ParsePriority reads the value of AnnotationPriority.
func ParsePriority(value string) (uint8, error) {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n > MaxPriority {
		return 0, fmt.Errorf("must be an integer from 0 to %d", MaxPriority)
	}
	return uint8(n), nil
}

// AddressWeight is the weight of an address.
type AddressWeight struct {
	Addr   netip.Addr
	Weight uint16
}

// A weightError is about one entry of AnnotationWeights.
type weightError struct{ entry, detail string }

func (e *weightError) Error() string { return fmt.Sprintf("%q: %s", e.entry, e.detail) }

// ParseWeights reads the value of AnnotationWeights.
func ParseWeights(value string) ([]AddressWeight, error) {
	var list []AddressWeight
	seen := map[netip.Addr]bool{}
	for _, entry := range strings.Split(value, ",") {
		entry = strings.TrimSpace(entry)
		address, number, two := strings.Cut(entry, "=")
		addr, err := netip.ParseAddr(strings.TrimSpace(address))
		if !two || err != nil || addr.Zone() != "" {
			return nil, &weightError{entry, "must be ADDRESS=WEIGHT, separated by commas"}
		}
		addr = addr.Unmap()
		weight, err := ParseWeight(strings.TrimSpace(number))
		if err != nil {
			return nil, &weightError{entry, "the weight " + err.Error()}
		}
		if seen[addr] {
			return nil, &weightError{entry, "names an address a second time"}
		}
		seen[addr] = true
		list = append(list, AddressWeight{addr, weight})
	}
	return list, nil
}

// checkServiceBalance is about the annotations of a Service. A value that stands in old is
// not asked again.
func checkServiceBalance(s, old *Service) Errors {
	var before *ObjectMeta
	if old != nil {
		before = &old.Metadata
	}
	errs := checkAnnotation(&s.Metadata, before, AnnotationBalance, checkBalance)
	errs = append(errs, checkAffinity(&s.Metadata, before)...)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationRetryAfter, checkBy(ParseRetryAfter))...)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationAdopt, checkBy(ParseAdopt))...)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationEject, checkBy(ParseEject))...)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationSlowStart, checkBy(ParseSlowStart))...)
	return append(errs, checkAnnotation(&s.Metadata, before, AnnotationWeights, func(p path, value string) Errors {
		if _, err := ParseWeights(value); err != nil {
			of := err.(*weightError)
			return invalid(p, of.entry, of.detail)
		}
		return nil
	})...)
}

// checkEndpointWeights is about the annotations of an object that names endpoints; old is nil
// for a new one.
func checkEndpointWeights(meta, old *ObjectMeta) Errors {
	weight := checkBy(ParseWeight)
	errs := checkAnnotation(meta, old, AnnotationWeight, weight)
	if _, ours := meta.Annotations[AnnotationWeight]; !ours {
		errs = append(errs, checkAnnotation(meta, old, AnnotationCiliumWeight, weight)...)
	}
	return append(errs, checkAnnotation(meta, old, AnnotationPriority, checkBy(ParsePriority))...)
}

// checkBy makes a check of what reads a value.
func checkBy[T any](parse func(string) (T, error)) func(path, string) Errors {
	return func(p path, value string) Errors {
		if _, err := parse(value); err != nil {
			return invalid(p, value, err.Error())
		}
		return nil
	}
}

// checkAnnotation checks an annotation that is there and new.
func checkAnnotation(meta, old *ObjectMeta, key string, check func(path, string) Errors) Errors {
	value, has := meta.Annotations[key]
	if !has {
		return nil
	}
	if old != nil {
		if was, had := old.Annotations[key]; had && was == value {
			return nil
		}
	}
	return check(metaPath.child("annotations").key(key), value)
}

// WeightOf is the weight that the annotations of an object give to its endpoints, 1 where
// they give none.
func (m *ObjectMeta) WeightOf() uint16 {
	value, has := m.Annotations[AnnotationWeight]
	if !has {
		value, has = m.Annotations[AnnotationCiliumWeight]
	}
	if !has {
		return 1
	}
	weight, err := ParseWeight(value)
	if err != nil {
		return 1 // refused by validation
	}
	return weight
}

// PriorityOf is the tier of an object's endpoints, 0 where its annotations give none.
func (m *ObjectMeta) PriorityOf() uint8 {
	value, has := m.Annotations[AnnotationPriority]
	if !has {
		return 0
	}
	priority, err := ParsePriority(value)
	if err != nil {
		return 0
	}
	return priority
}
