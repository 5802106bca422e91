package dlog.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.protocol.Errors;

/**
 * Runs one command per line of standard input, a JSON object with "op", and answers each with one
 * line of JSON: {"ok": ...} or {"error": code, "message": text}. Argument: the bootstrap address.
 */
public final class Main {
    static final ObjectMapper JSON = new ObjectMapper();

    interface Command {
        JsonNode run(JsonNode arguments) throws Exception;
    }

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try (AdminCommands admin = new AdminCommands(arguments[0])) {
            DataCommands data = new DataCommands(arguments[0]);
            Map<String, Command> commands = new java.util.HashMap<>(admin.commands());
            commands.putAll(data.commands());
            commands.putAll(new LoadCommands(arguments[0]).commands());
            BufferedReader in =
                    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.println(JSON.writeValueAsString(answer(commands, JSON.readTree(line))));
            }
        }
    }

    private static ObjectNode answer(Map<String, Command> commands, JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            answer.set("ok", commands.get(request.get("op").asText()).run(request));
        } catch (Exception error) {
            Throwable cause = error;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            answer.put("error", Errors.forException(cause).code());
            answer.put("message", cause.toString());
        }
        return answer;
    }
}
