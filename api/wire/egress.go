package wire

import (
	"fmt"
)

// EgressPorts is how many ports the kernel has for the connections that leave with one address towards one address, port and protocol:
// those from 1024 on.
const EgressPorts = 64_512

// EgressTraffic has the connections that endpoints of a Service began themselves and that left with one of its addresses.
type EgressTraffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Address   string `json:"address"`
	// To has the source sets with the destinations, as the annotation names them; absent: all that are outside.
	To      string         `json:"to,omitempty"`
	Sources []EgressSource `json:"sources"`
	// Open counts the connections that are tracked, of all sources, and Connections those since the start, where the kernel counts.
	Open        int     `json:"open"`
	Connections *uint64 `json:"connections,omitempty"`
	// Rate is connections a second since the look before; absent where there was none.
	Rate *float64 `json:"rate,omitempty"`
	// Ports are used of EgressPorts towards Fullest ("203.0.113.5:443/TCP"), where the address uses most, and By is the source with
	// most of them. Services that share the address share its ports.
	Ports   int    `json:"ports"`
	Fullest string `json:"fullest,omitempty"`
	By      string `json:"by,omitempty"`
}

// PortRatio returns the share of the ports that are used where most are.
func (e *EgressTraffic) PortRatio() float64 { return float64(e.Ports) / EgressPorts }

// EgressSource is a host whose connections leave with the address.
type EgressSource struct {
	Address     string  `json:"address"`
	Open        int     `json:"open"`
	Connections *uint64 `json:"connections,omitempty"`
	// Towards is where most of its open connections lead ("203.0.113.5:443/TCP"), and Uplink the interface by which they leave, of
	// a source that was asked for.
	Towards string `json:"towards,omitempty"`
	Uplink  string `json:"uplink,omitempty"`
}

func (s EgressSource) String() string { return s.Address }

// Text returns the Egress in one line: the address, its sources, the first few by name, its destinations, its connections and its use of ports.
func (e *EgressTraffic) Text() string {
	text := e.Address + " for " + First(e.Sources, 5)
	if e.To != "" {
		text += ", to " + e.To
	}
	text += fmt.Sprintf("; %d open", e.Open)
	if e.Rate != nil {
		text += ", " + Rate(*e.Rate) + " new/s"
	}
	if e.Connections != nil {
		text += fmt.Sprintf(", %d connections in all", *e.Connections)
	}
	if e.Fullest != "" {
		text += fmt.Sprintf("; %d of %d ports used towards %s", e.Ports, EgressPorts, e.Fullest)
	}
	return text
}

// Answering formats the Endpoint of a connection, with a mark if the endpoint began it.
func (c *Connection) Answering() string {
	if c.Out {
		return c.Endpoint + " (out)"
	}
	return c.Endpoint
}
