package look

import (
	"slices"

	"svcctl.io/svcctl/api/wire"
)

// fastColumn adds the column FAST to rows of connections, the first of which is the header, if one of them is fast. In wide rows it
// replaces the last column of fast connections, the time until they expire, by "-": the kernel does not report it.
func fastColumn(rows [][]string, wide bool, connections []wire.Connection) {
	if !slices.ContainsFunc(connections, func(c wire.Connection) bool { return c.Fast }) {
		return
	}
	rows[0] = append(rows[0], "FAST")
	for i := range connections {
		if wide && connections[i].Fast {
			rows[i+1][len(rows[i+1])-1] = "-"
		}
		rows[i+1] = append(rows[i+1], map[bool]string{true: "yes", false: "-"}[connections[i].Fast])
	}
}
