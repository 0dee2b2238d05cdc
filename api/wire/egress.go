package wire

import (
	"fmt"
)

// EgressPorts is the number of source ports that the kernel has for connections from one address to one destination (address, port and
// protocol): 1024 to 65535.
const EgressPorts = 64_512

// EgressTraffic has the connections that endpoints of a Service began themselves and that left with one of its addresses.
type EgressTraffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Address   string `json:"address"`
	// To names the source sets that contain the destinations, as in the annotation; absent: all destinations outside.
	To      string         `json:"to,omitempty"`
	Sources []EgressSource `json:"sources"`
	// Open counts the tracked connections of all sources. Connections counts those since the start, where the kernel counts them.
	Open        int     `json:"open"`
	Connections *uint64 `json:"connections,omitempty"`
	// Rate is new connections a second since the previous scan; absent in the first scan.
	Rate *float64 `json:"rate,omitempty"`
	// Ports is the number of EgressPorts in use towards Fullest ("203.0.113.5:443/TCP"), the destination with most of them in use.
	// By is the source that uses most of them. Services that share the address share its ports.
	Ports   int    `json:"ports"`
	Fullest string `json:"fullest,omitempty"`
	By      string `json:"by,omitempty"`
}

// PortRatio returns the used part, from 0 to 1, of the source ports towards Fullest.
func (e *EgressTraffic) PortRatio() float64 { return float64(e.Ports) / EgressPorts }

// EgressSource is a host whose connections leave with the address.
type EgressSource struct {
	Address     string  `json:"address"`
	Open        int     `json:"open"`
	Connections *uint64 `json:"connections,omitempty"`
	// Towards is the destination of most of its open connections ("203.0.113.5:443/TCP"). Uplink is the interface by which they
	// leave; it is set only for TrafficQuery.Source.
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
