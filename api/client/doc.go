// Package client is how the svcctl verbs talk to a running appliance: typed calls
// over its unix socket.
//
// Every call ends with its context. An appliance that cannot be reached is an
// *UnreachableError, whose text has the next step; a refusal of the appliance is a
// *wire.Failure. The package never starts, configures or programs anything, and
// never imports the server.
//
//	c := client.New("/run/svcctl/svcctl.sock")
//	status, err := c.Wait(ctx, client.Synced, 30*time.Second)
package client
