// Package look has the verbs that show the state of the appliance and change nothing: status, explain, get, describe, wait,
// health, top, trace and journal. status finds a problem, explain gives the reason, trace proves it; the rest is detail.
package look
