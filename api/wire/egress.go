package wire

import (
	"fmt"
)

// EgressPorts is the number of source ports that the kernel has for connections from one address to one destination (address, port and
// protocol): 1024 to 65535.
const EgressPorts = 64_512

// EgressTraffic counts connections that endpoints of a Service opened themselves and that left the box with an address of the Service as source.
type EgressTraffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Address   string `json:"address"`
	// To names the source sets that contain the destinations, as in the annotation; absent means all destinations outside.
	To      string         `json:"to,omitempty"`
	Sources []EgressSource `json:"sources"`
	// Open is the number of tracked connections from all sources. Connections is the number since the start; absent if the kernel does not count.
	Open        int     `json:"open"`
	Connections *uint64 `json:"connections,omitempty"`
	// Rate is the rate of new connections per second since the previous scan; absent in the first scan.
	Rate *float64 `json:"rate,omitempty"`
	// Fullest is the destination towards which most source ports are in use, such as "203.0.113.5:443/TCP". Ports is their number, out of
	// EgressPorts, and By the source that uses most of them. Services with the same address share its ports.
	Ports   int    `json:"ports"`
	Fullest string `json:"fullest,omitempty"`
	By      string `json:"by,omitempty"`
}

// PortRatio returns the used part, from 0 to 1, of the source ports towards Fullest.
func (e *EgressTraffic) PortRatio() float64 { return float64(e.Ports) / EgressPorts }

// EgressSource is a host with connections that leave the box with the Service's address.
type EgressSource struct {
	Address     string  `json:"address"`
	Open        int     `json:"open"`
	Connections *uint64 `json:"connections,omitempty"`
	// Towards is the destination of most of the source's open connections, such as "203.0.113.5:443/TCP". Uplink is the interface through which they
	// leave; it is set only in response to TrafficQuery.Source.
	Towards string `json:"towards,omitempty"`
	Uplink  string `json:"uplink,omitempty"`
}

func (s EgressSource) String() string { return s.Address }

// Text describes the egress traffic in one line: the address, the first few sources, the destinations, and the numbers of connections and ports in
// use.
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

// Answering returns the Endpoint of a connection. It is marked with "(out)" if the endpoint opened the connection.
func (c *Connection) Answering() string {
	if c.Out {
		return c.Endpoint + " (out)"
	}
	return c.Endpoint
}
