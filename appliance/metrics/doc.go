// Package metrics counts what the appliance does, for Prometheus.
//
// Invariants:
//
//   - A registry of its own: nothing is registered globally, two appliances in one
//     process (as in tests) do not meet.
//   - No label takes a value from outside (no names of objects, files or addresses),
//     so the number of series is bounded.
//   - docs/metrics.md describes each metric.
//   - Recording is cheap and never fails or blocks.
//
// The package must not decide anything from its numbers, and never imports nft/kernel.
//
//	m := metrics.New("v0.1.0")
//	m.Synced(metrics.Sync{Duration: took, Transaction: &metrics.Transaction{Operations: 2, Elements: 2}, At: now})
//	ln, err := metrics.Listen("127.0.0.1:9753")
//	err = api.Serve(ctx, ln, m.Handler(backend), log, m.APIPanicked)
package metrics
