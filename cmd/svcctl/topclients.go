package main

import (
	"fmt"
	"strconv"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// clientsTable lists the clients of a Service, the busiest first.
func clientsTable(clients *wire.ServiceClients) string {
	switch {
	case !clients.Counted:
		return "Clients are counted from the next look on.\n"
	case len(clients.Clients) == 0:
		return "Nobody is connected.\n"
	}
	rows := [][]string{{"CLIENT", "OPEN", "UNANSWERED"}}
	for _, c := range clients.Clients {
		rows = append(rows, []string{c.Client, strconv.Itoa(c.Open), strconv.Itoa(c.Unanswered)})
	}
	text := new(output.Grid).Text(rows...)
	if clients.More > 0 {
		text += fmt.Sprintf("%d more: raise --limit\n", clients.More)
	}
	return text
}
