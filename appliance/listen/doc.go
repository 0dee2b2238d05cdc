// Package listen keeps listeners in line with a desired state: a Reconciler runs one
// function after each change, again after a while as long as a listener cannot be opened,
// and publishes the problems that the function returns.
//
// Invariants:
//
//   - The function never runs twice at a time, and runs again if the desired state changed
//     meanwhile.
//   - Changed is signaled only when the problems differ from those before.
//   - Nothing runs while nothing changes and no listener is missing.
//
// TCP and UDP open the sockets of addresses that an operator wrote, Control sets options of sockets. The package must not log.
//
//	r := listen.NewReconciler[Problem](5 * time.Second)
//	go r.Run(ctx, func() (problems []Problem, retry bool) { ... })
//	r.Trigger()
package listen
