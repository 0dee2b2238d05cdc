package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// annotationShare of a slice is the share of its group of endpoints (behavior 950).
const annotationShare = "svcctl.io/share"

// hasShares reports whether a slice of a Service has a share.
func (w *World) hasShares(service *object.Service) bool {
	return slices.ContainsFunc(w.Slices, func(s *object.EndpointSlice) bool {
		return serviceOf(s) == object.RefOf(service).Key() && s.Metadata.Annotations[annotationShare] != ""
	})
}

// groupOf reads the group of a slice and its share: without the annotation the one without a name, which has 1.
func groupOf(s *object.EndpointSlice) (group string, share int) {
	text, given := s.Metadata.Annotations[annotationShare]
	if !given {
		return "", 1
	}
	group, number, named := strings.Cut(text, "=")
	if !named {
		group, number = s.Metadata.Name, text
	}
	share, _ = strconv.Atoi(number)
	return group, share
}

// sharesIn returns the share of each group of a frontend's own family; none if the Service has no shares.
func (w *World) sharesIn(f frontend) map[string]int {
	shares := map[string]int{}
	if !w.hasShares(f.service) {
		return shares
	}
	for _, s := range w.Slices {
		if serviceOf(s) != object.RefOf(f.service).Key() || s.AddressType != f.family {
			continue
		}
		for _, port := range s.Ports {
			if _, matches := matchPort(port, f); matches {
				group, share := groupOf(s)
				shares[group] = max(shares[group], share)
			}
		}
	}
	if slices.ContainsFunc(w.fromEndpoints(f), func(b backend) bool { return !anyContains(w.Box.ServiceRanges, b.address.Addr()) }) {
		shares[""] = max(shares[""], 1) // mirrored to a slice without a share
	}
	return shares
}

// byGroup has each group of backends chosen from by itself.
func byGroup(all []backend, choose func([]backend) []backend) (chosen []backend) {
	var groups []string
	for _, b := range all {
		if !slices.Contains(groups, b.group) {
			groups = append(groups, b.group)
		}
	}
	for _, group := range groups {
		for _, b := range choose(keep(all, func(b backend) bool { return b.group == group })) {
			if !slices.ContainsFunc(chosen, func(other backend) bool { return other.address == b.address }) {
				chosen = append(chosen, b)
			}
		}
	}
	return chosen
}

// refusesShare reports whether a group with a share has no backend to choose: its share is refused.
func (w *World) refusesShare(f frontend, all []backend, choose func([]backend) []backend) bool {
	if name, _ := object.ParseBalance(f.service.Metadata.Annotations[annotationBalance]); name == object.BalanceDestinationHash {
		return false // which has no shares
	}
	for group, share := range w.sharesIn(w.borrows(f)) {
		if share > 0 && len(choose(keep(all, func(b backend) bool { return b.group == group }))) == 0 {
			return true
		}
	}
	return false
}

// Chances are those of the endpoints that a packet to a Service with shares may get to, and of a refusal, which has no address:
// of a backend its weight of the sum of all weights, and of its endpoints theirs of that. nil: it meets no such Service, or it
// is dropped.
func (w *World) Chances(p Packet) map[netip.AddrPort]float64 {
	f, is := w.frontendFor(p)
	if outcomes := w.Decide(p); !is || outcomes[0].Kind == Dropped || outcomes[0].Hashed {
		return nil
	}
	shares, all, sum := w.sharesIn(w.borrows(f)), w.backendsOf(f), 0
	for _, share := range shares {
		sum += share
	}
	if sum == 0 {
		return nil
	}
	choose := func(group []backend) []backend { return w.everywhereIn(f, group) }
	if w.localOnly(f, p) {
		choose = onBoxIn
	}
	chances := map[netip.AddrPort]float64{}
	for group, share := range shares {
		usable, weights := choose(keep(all, func(b backend) bool { return b.group == group })), 0
		for _, b := range usable {
			weights += b.weight
		}
		of := float64(share) / float64(sum)
		if weights == 0 && share > 0 {
			chances[netip.AddrPort{}] += of
		}
		for _, b := range usable {
			chances[b.address] += of * float64(b.weight) / float64(weights)
		}
	}
	return chances
}
