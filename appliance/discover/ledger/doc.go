// Package ledger has the endpoints of Services as `svcctl discover` believes them: answers and failures in, endpoints and states out.
//
// It is pure: a machine that is given the time. Its rules:
//
//   - A failure changes no endpoint. It stops the clocks of absences, which run between two answers with no failure between them.
//   - The endpoints of an answer are in force at once.
//   - Those that are in it no more go at once while others stay, or after the parameter hold.
//   - The last endpoints of a Service port go when answers have been empty for 30 s, or for 2 s if a daemon proves it.
//   - When most Services of a provider are emptied together, they are held until they are released, or come back.
package ledger
