package config

import (
	"cmp"
	"slices"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
)

// FastPath selects the Services for which established connections bypass rules and routing through a flowtable.
type FastPath string

const (
	FastPathOff      FastPath = "off"
	FastPathServices FastPath = "services" // Services with the annotation
	FastPathAll      FastPath = "all"      // all Services that support it
)

// flowtable returns the flowtable of the box; nil if the fast path is off. Its devices are the links on which forwarded packets leave.
// Ports of a bridge are excluded, because the kernel would not notice that a MAC address moved to another port.
func (c *Config) flowtable(facts *node.Facts) *nft.Flowtable {
	if c.Services.FastPath == FastPathOff || c.Services.FastPath == "" {
		return nil
	}
	fast := &nft.Flowtable{Counter: c.Services.ReadsFlows()}
	if facts != nil {
		for _, i := range facts.Interfaces {
			if i.Forwards {
				fast.Devices = append(fast.Devices, nft.Device{Name: i.Name, Index: i.Index})
			}
		}
		slices.SortFunc(fast.Devices, func(a, b nft.Device) int { return cmp.Compare(a.Name, b.Name) })
	}
	return fast
}
