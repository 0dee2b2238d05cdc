// Package top is the table of `svcctl top`: which ports of Services, which endpoints and which clients have
// connections, in text, and on a terminal with keys that sort and filter it. Each look is one request to the
// appliance.
//
//	t := top.New(c, of, top.Options{By: "open"})
//	err := t.Live(ctx, os.Stdin, os.Stdout, time.Now)
package top
