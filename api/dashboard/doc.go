// Package dashboard shows the appliance as pages in a browser: whether the Services answer, traffic and what happened, problems, then Services,
// one Service with its endpoints and the way of its packets, connections, addresses and the journal.
//
// Everything is rendered here, and works without scripts. One script of our own puts new numbers
// into a page that is open. Pages load nothing from elsewhere, change nothing, and set no cookie:
// the API that serves them checks the rights.
package dashboard
