// Package appliance puts the parts together and runs them: configuration, the watched
// directories, the store, the API, the metrics, and the one loop that owns our tables
// in the kernel.
//
// The loop is level-triggered. An event means only that something may have
// changed; the loop then takes the newest state of everything, plans (pure), commits
// the difference and publishes the result. Nothing is deleted before every source was
// read once, nothing is torn down when it stops, and a start over unchanged input
// commits nothing.
//
//	err := appliance.Run(ctx, cfg, log)
//
// Run has phases: open (data directory, kernel, store), claim (addresses that are held), build (the parts),
// listen (API, metrics, DNS) and serve (the tasks), and then closes everything in the reverse order.
//
// Only the loop's goroutine touches the planner and the applier. The API and the
// metrics read the state it publishes and can never block it.
package appliance
