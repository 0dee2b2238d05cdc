// Package change has the verbs that change objects, or show what a change would do: apply, delete, edit, expose, import,
// validate, diff, plan, confirm, rollback, out and in.
package change
