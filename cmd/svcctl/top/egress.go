package top

import (
	"strconv"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// egressTable formats the outgoing connections of endpoints as a table, by the Service address that is their source; "" if there are none.
func egressTable(rows []wire.EgressTraffic) string {
	if len(rows) == 0 {
		return ""
	}
	table := [][]string{{"LEAVES WITH", "SERVICE", "HOSTS", "OPEN", "OUT/s", "CONNS", "PORTS"}}
	for i := range rows {
		e := &rows[i]
		table = append(table, []string{e.Address, output.ServicePort(e.Namespace, e.Service, ""), strconv.Itoa(len(e.Sources)), strconv.Itoa(e.Open), output.Rate(e.Rate),
			numberText(e.Connections), strconv.Itoa(int(100*e.PortRatio())) + " %"})
	}
	return "\n" + output.TrimLines(new(output.Grid).Text(table...))
}
